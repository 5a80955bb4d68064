/** The Inspector begins here. */

import "./no-eval.js";
import "@fontsource-variable/inter/wght.css";
import "@fontsource-variable/jetbrains-mono/wght.css";
import "./design/tokens.css";
import "./design/base.css";

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { App } from "./app.js";
import { applyTheme, keptTheme } from "./sidebar/theme.js";

applyTheme(keptTheme());

// After an update of the server, pieces that this page has not loaded yet have other names.
window.addEventListener("vite:preloadError", () => window.location.reload());

createRoot(document.getElementById("root") as HTMLElement).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
