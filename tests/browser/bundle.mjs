/** Writes the page of the tests, with the SDK as bundlers take it for browsers, into one file: `node bundle.mjs FILE`. */

// By its path: it is the bundler that the Inspector is built with.
import { rolldown } from "../../inspector/node_modules/rolldown/dist/index.mjs";

const SDK = `${import.meta.dirname}/../../sdks/typescript`;
const bundle = await rolldown({
  input: `${import.meta.dirname}/pages/index.js`,
  platform: "browser",
  resolve: { alias: { sandboxagent: `${SDK}/dist/browser.js` } },
});
await bundle.write({ file: process.argv[2], format: "esm", codeSplitting: false });
