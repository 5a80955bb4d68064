/** Writes what the page of the tests has, the SDK and all it needs, into one file: `node bundle.mjs FILE`. */

// By its path: it is the bundler that the Inspector is built with.
import { rolldown } from "../../inspector/node_modules/rolldown/dist/index.mjs";

const SDK = `${import.meta.dirname}/../../sdks/typescript`;
const alias = {
  sandboxagent: `${SDK}/dist/index.js`,
  "@agentclientprotocol/sdk": `${SDK}/node_modules/@agentclientprotocol/sdk/dist/v1/stable/acp.js`,
  "zod/v4": `${SDK}/node_modules/zod/v4/index.js`,
};
const bundle = await rolldown({
  input: `${import.meta.dirname}/pages/index.js`,
  platform: "browser",
  external: /^node:/,
  resolve: { alias },
});
await bundle.write({ file: process.argv[2], format: "esm", codeSplitting: false });
