/** Prints, as JSON, how to start the Chromium that starts here, for programs that start it themselves. */

import { found } from "./chromium.mjs";

process.stdout.write(`${JSON.stringify(await found())}\n`);
