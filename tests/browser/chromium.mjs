/**
 * A Chromium that starts here: the one on the PATH, else the one of the npm package, with the libraries of the machine
 * or, where those are missing, with the libraries that the package brings along.
 */

import {
  accessSync,
  constants,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { delimiter, dirname, join } from "node:path";

import { chromium } from "playwright-core";

// By its path: the package keeps it to itself, and would leave out the libraries.
import { inflate } from "./node_modules/@sparticuz/chromium/build/lambdafs.js";

const HERE = import.meta.dirname;
const BUILD = join(HERE, ".build");
const PACKAGE = join(HERE, "node_modules", "@sparticuz", "chromium");
const NAMES = ["chromium", "chromium-browser", "google-chrome"];
/** No window, no sandbox within a sandbox, and nothing of the network that the pages do not ask for. */
const ARGUMENTS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const TIMEOUT = 60_000;

/** Text needs a font, and a machine without a screen may have none. */
const FONTS = `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir><dir>/usr/share/fonts</dir></fontconfig>
`;

/** Starts one; throws with what each of them said when none does. */
export async function launched() {
  return (await first())[1];
}

/** How one is started by others: its program, its arguments, and what it needs in its environment. */
export async function found() {
  const [{ executablePath, env = {} }, browser] = await first();
  await browser.close();
  const own = Object.entries(env).filter(([name, value]) => process.env[name] !== value);
  return { program: executablePath, arguments: ARGUMENTS, environment: Object.fromEntries(own) };
}

async function first() {
  const complaints = [];
  for (const candidate of [onPath, packaged, packagedWithLibraries]) {
    try {
      const options = await candidate();
      return [options, await chromium.launch({ ...options, args: ARGUMENTS, timeout: TIMEOUT })];
    } catch (error) {
      complaints.push(summary(error));
    }
  }
  throw new Error(`no Chromium starts here: ${complaints.join("; ")}`);
}

function onPath() {
  const folders = (process.env.PATH ?? "").split(delimiter).filter(Boolean);
  const found = folders.flatMap((folder) => NAMES.map((name) => join(folder, name))).find(isProgram);
  if (found === undefined) throw new Error("there is none on the PATH");
  return { executablePath: found };
}

async function packaged() {
  const place = await unpacked();
  const env = { ...process.env, FONTCONFIG_FILE: join(place, "fonts.conf") };
  return { executablePath: join(place, "chromium"), env };
}

async function packagedWithLibraries() {
  const { executablePath, env } = await packaged();
  return { executablePath, env: { ...env, LD_LIBRARY_PATH: join(dirname(executablePath), "al2023", "lib") } };
}

function isProgram(path) {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** Where the package's Chromium is, out of its archives. */
async function unpacked() {
  const { version } = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8"));
  const place = join(BUILD, `chromium-${version}`);
  if (existsSync(place)) return place;
  mkdirSync(BUILD, { recursive: true });
  // It gets its name when it is whole; another process that unpacks it may have been first.
  const fresh = mkdtempSync(join(BUILD, "unpacking-"));
  process.env.TMPDIR = fresh;
  const archives = ["chromium.br", "fonts.tar.br", "al2023.tar.br"];
  await Promise.all(archives.map((archive) => inflate(join(PACKAGE, "bin", archive))));
  delete process.env.TMPDIR;
  writeFileSync(join(fresh, "fonts.conf"), FONTS);
  try {
    renameSync(fresh, place);
  } catch (error) {
    rmSync(fresh, { recursive: true });
    if (!existsSync(place)) throw error;
  }
  return place;
}

/** The line of an error that says the most. */
function summary(error) {
  const lines = String(error.message).split("\n");
  return lines.find((line) => /error while loading|cannot execute|ENOENT|EACCES|Exec format/.test(line)) ?? lines[0];
}
