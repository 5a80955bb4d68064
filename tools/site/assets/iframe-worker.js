/**
 * Search works in a web worker, and browsers start none for a page that was opened from a folder. There, a hidden frame
 * takes its place. The file's name tells Zensical not to load such a script from elsewhere.
 */
if (location.protocol === "file:") {
  window.Worker = class {
    #frame = document.createElement("iframe");
    #loaded;

    constructor(url) {
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      // Messages are copies, and arrive later, as those of a worker do: the sender has finished by then.
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      this.#loaded = new Promise((resolve) => (script.onload = resolve));
      script.onerror = (event) => this.onerror?.(event);
      inside.document.body.append(script);
    }

    postMessage(data) {
      const copy = structuredClone(data);
      void this.#loaded.then(() => this.#frame.contentWindow?.onmessage({ data: copy }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
