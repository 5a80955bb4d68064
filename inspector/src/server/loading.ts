/** Something that is asked of the server: on its way, there, or failed; asked again when what it depends on changes. */

import { useCallback, useEffect, useRef, useState } from "react";

export type Loaded<T> =
  | { readonly state: "loading"; readonly value: T | undefined }
  | { readonly state: "there"; readonly value: T }
  | { readonly state: "failed"; readonly error: unknown; readonly value: T | undefined };

/** `load` must be the same function as long as the same thing is wanted. Gives also a function that asks again. */
export function useLoaded<T>(load: (() => Promise<T>) | undefined): [Loaded<T>, () => void] {
  const [loaded, setLoaded] = useState<Loaded<T>>({ state: "loading", value: undefined });
  const [times, setTimes] = useState(0);
  const asked = useRef(load);
  useEffect(() => {
    let current = true;
    setLoaded((before) => ({ state: "loading", value: asked.current === load ? before.value : undefined }));
    asked.current = load;
    load?.().then(
      (value) => current && setLoaded({ state: "there", value }),
      (error: unknown) => current && setLoaded((before) => ({ state: "failed", error, value: before.value })),
    );
    return () => {
      current = false;
    };
  }, [load, times]);
  return [loaded, useCallback(() => setTimes((before) => before + 1), [])];
}
