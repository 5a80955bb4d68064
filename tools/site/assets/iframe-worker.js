/**
 * Search works in a web worker, and browsers start none for a page that was opened from a folder. There, a hidden frame
 * takes its place. The file's name tells Zensical not to load such a script from elsewhere.
 */
if (location.protocol === "file:") {
  window.Worker = class {
    #frame = document.createElement("iframe");
    #waiting = [];

    constructor(url) {
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.({ data });
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        for (const data of this.#waiting.splice(0)) inside.onmessage({ data });
        this.#waiting = null;
      };
      script.onerror = (event) => this.onerror?.(event);
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data);
      else this.#frame.contentWindow.onmessage({ data });
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
