// Elements and how one tree becomes another: a screen describes itself anew each time, and `patch` changes only what
// differs. Focus, selection, scroll position and text being typed survive, since elements stay. Always: no inline style
// attribute and no inline handler, which the content security policy would refuse.

/** @typedef {Node & {key?: string, on?: Record<string, (event: any) => void>}} Live */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element: `h("button.danger", {onclick: remove}, "Remove")`.
 * @param {string} what tag and classes
 * @param {Record<string, any> | null} [props]
 * @param {...any} children
 * @returns {any}
 */
export function h(what, props, ...children) {
  const [tag = "div", ...classes] = what.split(".");
  return fill(document.createElement(tag), classes, props, children);
}

/**
 * The same for SVG.
 * @param {string} what
 * @param {Record<string, any> | null} [props]
 * @param {...any} children
 * @returns {any}
 */
export function svg(what, props, ...children) {
  const [tag = "g", ...classes] = what.split(".");
  return fill(document.createElementNS(SVG, tag), classes, props, children);
}

/**
 * @param {any} node
 * @param {string[]} classes
 * @param {Record<string, any> | null | undefined} props
 * @param {any[]} children
 */
function fill(node, classes, props, children) {
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "key") node.key = String(value);
    else if (name === "style") for (const [rule, set] of Object.entries(value)) node.style.setProperty(rule, String(set));
    else if (name === "class") node.setAttribute("class", [...classes, value].join(" "));
    else if (name.startsWith("on")) listen(node, name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

/** @param {any} node @param {any[]} children */
function append(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(node, child);
    else if (child instanceof Node) node.appendChild(child);
    else if (child !== null && child !== undefined && child !== false && child !== "") node.appendChild(document.createTextNode(String(child)));
  }
}

/** One listener for each kind of event, which finds the handler when it is called: `patch` replaces handlers only. */
/** @param {any} node @param {string} type @param {(event: any) => void} handler */
function listen(node, type, handler) {
  if (!node.on) node.on = {};
  if (!(type in node.on)) node.addEventListener(type, (/** @type {Event} */ event) => node.on[type]?.(event));
  node.on[type] = handler;
}

/**
 * Makes the children of `root` those of the given tree.
 * @param {Element} root
 * @param {any} tree a node, or a list of them
 */
export function render(root, tree) {
  const wanted = document.createElement("div");
  append(wanted, [tree]);
  patchChildren(root, wanted);
}

/** @param {any} old @param {any} wanted */
function same(old, wanted) {
  return old.nodeType === wanted.nodeType && old.nodeName === wanted.nodeName && old.key === wanted.key;
}

/** @param {any} old @param {any} wanted */
function patch(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name, value } of [...wanted.attributes]) {
    if (name === "style") {
      if (old.style.cssText !== wanted.style.cssText) old.style.cssText = wanted.style.cssText;
    } else if (old.getAttribute(name) !== value) {
      old.setAttribute(name, value);
    }
  }
  for (const { name } of [...old.attributes]) {
    // What a person opened stays open.
    if (wanted.hasAttribute(name) || (name === "open" && old.nodeName === "DETAILS")) continue;
    if (name === "style") old.style.cssText = "";
    else old.removeAttribute(name);
  }
  for (const type of Object.keys(old.on ?? {})) if (!wanted.on?.[type]) delete old.on[type];
  for (const [type, handler] of Object.entries(wanted.on ?? {})) listen(old, type, /** @type {any} */ (handler));
  // An element that looks after its own children is left alone.
  if (!old.hasAttribute("data-own")) patchChildren(old, wanted);
}

/** @param {any} root @param {any} wanted */
function patchChildren(root, wanted) {
  /** @type {Map<string, any>} */
  const keyed = new Map();
  for (const child of root.childNodes) if (child.key !== undefined) keyed.set(child.key, child);
  let place = root.firstChild;
  for (const child of [...wanted.childNodes]) {
    const known = child.key === undefined ? undefined : keyed.get(child.key);
    if (known && known !== place && same(known, child)) {
      root.insertBefore(known, place);
      patch(known, child);
    } else if (place && same(place, child)) {
      const next = place.nextSibling;
      patch(place, child);
      place = next;
    } else {
      root.insertBefore(child, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

/** The element with this id, which the page has. */
/** @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}
