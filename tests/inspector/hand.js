/**
 * What a person does before a click or a keystroke: looks for the thing, and waits until it can be used and stays where it is.
 *
 * The order says what to find (`css`, or `role` and `name`; `exact` or a part of the name), and what for: to see it, click it,
 * fill it, focus it, or choose an option of it. What is clicked or filled gets the attribute `data-hand`, by which the browser finds it
 * again, and `window.handled` has its number once the click has reached it. Gives null, or why it cannot be used.
 */
async ({ css, role, name, exact, purpose, option, number, patience }) => {
  const KINDS = {
    button: "button, summary, [role=button]",
    field: "input, textarea, select",
    link: "a[href]",
    menuitem: "[role=menuitem]",
    radio: "input[type=radio], [role=radio]",
  };
  const begun = performance.now();
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const placeOf = (element) => JSON.stringify(element.getBoundingClientRect());

  /** Roughly what something is called: its texts and labels, without what is hidden from assistive technology. */
  const wordsOf = (node) => {
    if (!(node instanceof Element)) return node instanceof Text ? node.data : "";
    if (node.ariaHidden === "true") return "";
    return node.ariaLabel ?? node.getAttribute("alt") ?? [...node.childNodes].map(wordsOf).join("");
  };
  const namesOf = (each) => [
    ...[each, ...(each.labels ?? []), ...(each.ariaLabelledByElements ?? [])].map(wordsOf),
    ...["title", "placeholder", "value"].map((attribute) => each.getAttribute(attribute) ?? ""),
  ];
  const bare = (text) => text.replace(/\s+/g, "");

  // The browser itself knows what things are called: the tests start it with that feature. Each answer costs it as much
  // as drawing the page, so it is asked only about what may be called so.
  const isCalled = (each) =>
    namesOf(each).some((words) => bare(words).includes(bare(name))) &&
    (exact ? each.computedName === name : each.computedName.includes(name));
  const find = () =>
    css === undefined ? [...document.querySelectorAll(KINDS[role])].find(isCalled) : document.querySelector(css);

  const isEnabled = (element) => !element.matches(":disabled, [aria-disabled=true], [inert] *");

  const isOnTop = (element) => {
    const { x, y, width, height } = element.getBoundingClientRect();
    const top = document.elementFromPoint(x + width / 2, y + height / 2);
    return top !== null && (element.contains(top) || top.closest("label")?.control === element);
  };

  const optionOf = (element) =>
    [...(element.options ?? [])].find(({ text, value }) => text === option || value === option);

  /** Why it cannot be used yet; null when it can. */
  const wrongWith = async (element) => {
    if (!element) return "it is not there";
    if (purpose === "focus" || purpose === "see") return null;
    if (!isEnabled(element)) return "it is disabled";
    if (purpose === "choose") return optionOf(element) ? null : `it has no option ${option}`;
    if (purpose === "fill") return element.readOnly ? "it is read-only" : null;
    if (!isOnTop(element)) element.scrollIntoView({ block: "center", behavior: "instant" });
    const before = placeOf(element);
    await frame();
    await frame();
    if (find() !== element || placeOf(element) !== before) return "it moves";
    return isOnTop(element) ? null : "something covers it";
  };

  let element = find();
  for (let wrong = await wrongWith(element); wrong !== null; wrong = await wrongWith(element)) {
    if (performance.now() - begun > patience) return wrong;
    await new Promise((resolve) => setTimeout(resolve, 40));
    element = find();
  }
  if (purpose === "focus") {
    element.focus();
  } else if (purpose === "choose") {
    // React notices a value only when it is set past its own setter.
    Object.getOwnPropertyDescriptor(HTMLSelectElement.prototype, "value").set.call(element, optionOf(element).value);
    element.dispatchEvent(new Event("change", { bubbles: true }));
  } else if (purpose !== "see") {
    window.handled = 0;
    element.dataset.hand = String(number);
    // Whatever is called so by then: a page may put another in its place that looks and does the same.
    const clicked = (event) => {
      if (!event.composedPath().includes(find())) return;
      window.handled = number;
      document.removeEventListener("click", clicked, { capture: true });
    };
    document.addEventListener("click", clicked, { capture: true });
  }
  return null;
};
