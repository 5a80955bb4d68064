/**
 * Keeps a library from trying `new Function`: the page's policy refuses it, and the browser reports each try in its console.
 *
 * Imported before all else, because the library (zod, of ACP's SDK) reads this when it is loaded.
 */

(globalThis as { __zod_globalConfig?: object }).__zod_globalConfig = { jitless: true };
