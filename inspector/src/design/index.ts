/** The pieces that every room is made of. */

export { Badge, STATES, StateDot, type Tone } from "./badge.js";
export { Button, IconButton } from "./button.js";
export { Dialog } from "./dialog.js";
export { Words } from "./entry.js";
export { Field, Input, Select, TextArea } from "./field.js";
export { Menu, MenuItem } from "./menu.js";
export { EmptyState, ErrorNote, Kbd, Loading, Spinner, wordsOf } from "./notes.js";
export { SearchField } from "./search-field.js";
export { SplitPane } from "./split-pane.js";
export { Tabs, type TabLink } from "./tabs.js";
export { Ago, agoText, durationText, sizeText, useNow } from "./time.js";
export { Toasts, copy, toast } from "./toast.js";
export { Toggle, Toggles } from "./toggle.js";
