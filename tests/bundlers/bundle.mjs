/** Builds a page as its bundler does by itself: `node bundle.mjs esbuild|webpack|vite PROJECT OUT`, from PROJECT/index.js. */

import { promisify } from "node:util";

const [bundler, project, out] = process.argv.slice(2);

const bundlers = {
  async esbuild() {
    const { build } = await import("esbuild");
    const entryPoints = [`${project}/index.js`];
    await build({ absWorkingDir: project, entryPoints, outdir: out, bundle: true, minify: true, format: "esm" });
  },
  async webpack() {
    const { default: webpack } = await import("webpack");
    const output = { path: out, filename: "index.js" };
    const stats = await promisify(webpack)({ mode: "production", context: project, entry: "./index.js", output });
    const { errors, warnings } = stats.toJson({ all: false, errors: true, warnings: true });
    const told = [...errors, ...warnings].map(({ message }) => message);
    if (told.length > 0) throw new Error(told.join("\n"));
  },
  async vite() {
    const { build } = await import("vite");
    const output = { entryFileNames: "index.js" };
    const rolldownOptions = { input: `${project}/index.js`, output };
    await build({ root: project, configFile: false, logLevel: "warn", build: { outDir: out, rolldownOptions } });
  },
};

await bundlers[bundler]();
