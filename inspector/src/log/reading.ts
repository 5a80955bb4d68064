/** Reads members of JSON that others wrote, as the SDK does. */

export {
  type Json,
  listAt,
  numberAt,
  objectAt,
  objectOf,
  ours,
  textAt,
} from "../../../sdks/typescript/src/view/json.js";
