/**
 * Fails when the package is not built. npm runs this as `prepare` when a project installs the package from a checkout,
 * where it would otherwise install a package without code.
 */

import { existsSync } from "node:fs";

if (!["index.js", "browser.js"].every((name) => existsSync(new URL(`../dist/${name}`, import.meta.url)))) {
  console.error(`
sandboxagent is not built, so there is nothing to install. In the checkout of sandbox-agent, run

    ./dev pack

and install the tarball that it puts into dist/.
`);
  process.exit(1);
}
