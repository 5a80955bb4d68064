/** Where the program runs. */

/** Whether this is Node or something like it, where sockets are many and programs can be started. */
export function isNode(): boolean {
  return typeof process === "object" && typeof process.versions?.node === "string";
}
