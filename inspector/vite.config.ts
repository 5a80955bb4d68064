/// <reference types="vitest/config" />
/** How the Inspector is built: into the Python package, each text file also as gzip, so that the server need not pack it. */

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

import react from "@vitejs/plugin-react";
import { type Plugin, defineConfig } from "vite";

const SDK = `${import.meta.dirname}/../sdks/typescript`;
const PACKED = /\.(js|css|html|svg|json)$/;
const SMALLEST_PACKED = 1024;

function packing(): Plugin {
  return {
    name: "packing",
    apply: "build",
    // When they are written: until then Vite still changes them.
    writeBundle({ dir = "." }, bundle) {
      for (const name of Object.keys(bundle).filter((each) => PACKED.test(each))) {
        const content = readFileSync(join(dir, name));
        if (content.length >= SMALLEST_PACKED) writeFileSync(join(dir, `${name}.gz`), gzipSync(content, { level: 9 }));
      }
    },
  };
}

export default defineConfig({
  base: "/ui/",
  plugins: [react(), packing()],
  resolve: {
    // From its sources, so that there is nothing to be built first.
    alias: {
      sandboxagent: `${SDK}/src/index.ts`,
      "@agentclientprotocol/sdk": `${SDK}/node_modules/@agentclientprotocol/sdk`,
    },
  },
  build: {
    outDir: "../src/sandboxagent/server/http/inspector",
    emptyOutDir: true,
    target: ["chrome125", "firefox128", "safari17.5"],
    // A picture in the style sheet would be no file of ours.
    assetsInlineLimit: 0,
    reportCompressedSize: false,
  },
  test: {
    environment: "node",
    include: ["src/**/*.test.{ts,tsx}"],
    restoreMocks: true,
    // No test may fail because the machine is busy.
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
