/** What the plots share: sharp canvases, and colours of the theme that holds. */

const colours = new Map();
let scheme = "";

/** The colour of a custom property, resolved; canvases don't know `light-dark()`. */
export function token(name) {
  const now = getComputedStyle(document.body).color;
  if (now !== scheme) {
    scheme = now;
    colours.clear();
  }
  if (!colours.has(name)) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    colours.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return colours.get(name);
}

/** Clears a canvas and gives it the pixels of its place. */
export function fit(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return { context, width, height };
}

/** A colour of `token`, let through. */
export const fade = (colour, alpha) => colour.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
