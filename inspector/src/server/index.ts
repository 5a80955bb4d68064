/** The server, for rooms. */

export {
  Connected,
  useConnection,
  useConnectionView,
  useHealth,
  useInventory,
  useServer,
  useSessionInfo,
} from "./context.js";
export type { ConnectionView } from "./connection.js";
export { type InventoryView, stateOf, titleOf } from "./inventory.js";
export { type Loaded, useLoaded } from "./loading.js";
export { Store, useStore } from "./store.js";
