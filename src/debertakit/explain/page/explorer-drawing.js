"use strict";

/* Drawings of the attention explorer: matrices, thumbnails, lines between tokens, curves, and the picture of the parts.
   Texts and tokens are inserted only as text nodes. */

const explorerDrawing = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  }

  /* Elements: make("p", {class: "note"}, "text", child). */
  const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const makeSvg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  function palette() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
    const names = ["paper", "ink", "high", "low", "content", "position"];
    return Object.fromEntries(names.map((name) => [name, colour(`--${name}`)]));
  }

  const mix = (from, to, amount) => from.map((channel, i) => Math.round(channel + (to[i] - channel) * amount));
  /* Background colour: half content, half position. */
  const between = (colours, share) =>
    mix(colours.paper, share > 0.5 ? colours.position : colours.content, Math.min(1, Math.abs(2 * share - 1)));
  const css = (colour) => `rgb(${colour.join(" ")})`;
  const shown = (token) => token.trim() || "␣";
  const short = (token, most = 14) => {
    const letters = [...shown(token)];
    return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
  };
  /* Square root: rows sum to 1, so stripes would be faint next to the diagonal. */
  const attentionColour = (colours) => (value) => mix(colours.paper, colours.high, Math.sqrt(Math.max(0, value)));

  /* A canvas that fills the width of its container and is sharp on any screen. paint(context, width, height) runs again
     after a resize. */
  function canvas(aspect, paint, attributes = {}) {
    const element = make("canvas", attributes);
    const repaint = () => {
      const width = element.clientWidth;
      if (!width) return;
      const ratio = window.devicePixelRatio || 1;
      const height = Math.round(width * aspect);
      element.width = width * ratio;
      element.height = height * ratio;
      element.style.height = `${height}px`;
      const context = element.getContext("2d");
      context.scale(ratio, ratio);
      paint(context, width, height);
    };
    new ResizeObserver(repaint).observe(element);
    return { element, repaint };
  }

  /* One pixel per cell. */
  function pixels(cells, length, tint, target = document.createElement("canvas")) {
    const image = new ImageData(length, length);
    for (let cell = 0; cell < cells.length; cell++) image.data.set([...tint(cells[cell]), 255], 4 * cell);
    target.width = target.height = length;
    target.getContext("2d").putImageData(image, 0, 0);
    return target;
  }

  /* A matrix. If its cells are large enough, tokens are written along its left and top edges.
     read: { values(), colourOf(colours), cursor(), move(query, key, event), describe() } */
  function matrix(tokens, labelled, read) {
    const length = tokens.length;
    const ruler = document.createElement("canvas").getContext("2d");
    ruler.font = "12px sans-serif";
    const longest = Math.max(...tokens.map((token) => ruler.measureText(short(token)).width)) + 10;
    const edge = (width) => (labelled && (width * 0.76) / length >= 8 ? Math.min(width * 0.24, longest) : 0);
    const { element, repaint } = canvas(
      1,
      (context, width) => {
        const colours = palette();
        const margin = edge(width);
        const side = (width - margin) / length;
        context.clearRect(0, 0, width, width);
        context.imageSmoothingEnabled = false;
        const cells = pixels(read.values(), length, read.colourOf(colours));
        context.drawImage(cells, margin, margin, width - margin, width - margin);
        const { query, key } = read.cursor();
        context.strokeStyle = css(mix(colours.paper, colours.ink, 0.55));
        context.strokeRect(margin, margin + query * side, width - margin, side);
        context.strokeRect(margin + key * side, margin, side, width - margin);
        if (!margin) return;
        context.textBaseline = "middle";
        tokens.forEach((token, i) => {
          const write = (chosen) => {
            context.font = `${chosen ? "bold " : ""}${Math.min(12, side)}px sans-serif`;
            context.fillStyle = css(mix(colours.paper, colours.ink, chosen ? 1 : 0.75));
          };
          write(i === query);
          context.textAlign = "right";
          context.fillText(short(token), margin - 4, margin + (i + 0.5) * side, margin - 6);
          const alone = [...short(token)].length === 1; // a Chinese character stays upright
          context.save();
          context.translate(margin + (i + 0.5) * side, margin - (alone ? 4 + side / 2 : 4));
          if (!alone) context.rotate(-Math.PI / 2);
          write(i === key);
          context.textAlign = alone ? "center" : "left";
          context.fillText(short(token), 0, 0, margin - 6);
          context.restore();
        });
      },
      { tabindex: 0, role: "img" },
    );
    const point = (event) => {
      const box = element.getBoundingClientRect();
      const margin = edge(box.width);
      const at = (position) => Math.floor(((position - margin) / (box.width - margin)) * length);
      const [query, key] = [at(event.clientY - box.top), at(event.clientX - box.left)];
      if (Math.min(query, key) >= 0 && Math.max(query, key) < length) read.move(query, key, event);
    };
    element.addEventListener("pointermove", point);
    element.addEventListener("pointerdown", point);
    element.addEventListener("keydown", (event) => {
      const step = ARROWS[event.key];
      if (!step) return;
      event.preventDefault();
      const { query, key } = read.cursor();
      const inside = (place) => Math.max(0, Math.min(length - 1, place));
      read.move(inside(query + step[0]), inside(key + step[1]));
    });
    return {
      element,
      update() {
        repaint();
        element.setAttribute("aria-label", read.describe());
      },
    };
  }

  /* Tokens on both sides, joined by lines that are as strong as the attention. Those of the chosen query stand out.
     A query that is pointed at is chosen, with the key that it attends to most. */
  function linesBetween(tokens, read) {
    const [row, left, right] = [20, 140, 260];
    const height = row * tokens.length + 6;
    const at = (place) => row * (place + 0.5) + 3;
    const strokes = makeSvg("g");
    const look = (query) => {
      const row = read.values().subarray(query * tokens.length, (query + 1) * tokens.length);
      read.move(query, row.indexOf(Math.max(...row)));
    };
    const queries = tokens.map((token, i) =>
      makeSvg("text", { x: left - 6, y: at(i) + 4, "text-anchor": "end", onclick: () => look(i), onpointerenter: () => look(i) }, short(token, 18)));
    const keys = tokens.map((token, i) => makeSvg("text", { x: right + 6, y: at(i) + 4 }, short(token, 18)));
    const svg = makeSvg("svg", { viewBox: `0 0 400 ${height}`, role: "img" }, strokes, ...queries, ...keys);
    return {
      element: svg,
      update() {
        const { query, key } = read.cursor();
        const cells = read.values();
        const faint = [];
        const strong = [];
        for (let cell = 0; cell < cells.length; cell++) {
          const share = cells[cell];
          if (share < 0.03) continue;
          const i = Math.floor(cell / tokens.length);
          const line = makeSvg("line", { x1: left, y1: at(i), x2: right, y2: at(cell % tokens.length) });
          line.style.strokeOpacity = i === query ? Math.min(1, 0.15 + share) : 0.3 * share;
          line.style.strokeWidth = i === query ? 1 + 3 * share : 1;
          (i === query ? strong : faint).push(line);
        }
        strokes.replaceChildren(...faint, ...strong);
        queries.forEach((text, i) => text.classList.toggle("chosen", i === query));
        keys.forEach((text, i) => text.classList.toggle("chosen", i === key));
        svg.setAttribute("aria-label", read.describe());
      },
    };
  }

  /* Attention (bars) and position scores (line) by the position of the key token: earlier on the left, later on the right. */
  function profilePlot(words, bars, line) {
    return canvas(0.27, (context, width, height) => {
      const colours = palette();
      const attention = bars();
      const scores = line();
      const count = attention.length;
      const floor = height - 16;
      const x = (i) => (count - 1 - i + 0.5) * (width / count); // distances i - j ascend, but earlier keys go left
      context.clearRect(0, 0, width, height);
      const most = Math.max(...attention, 1e-9);
      context.fillStyle = css(mix(colours.paper, colours.high, 0.75));
      attention.forEach((value, i) => {
        const tall = (value / most) * (floor - 4);
        context.fillRect(x(i) - (width / count) * 0.4, floor - tall, (width / count) * 0.8, tall);
      });
      if (scores) {
        const size = Math.max(...scores.map(Math.abs), 1e-9);
        context.strokeStyle = css(colours.position);
        context.lineWidth = 2;
        context.beginPath();
        scores.forEach((value, i) => context.lineTo(x(i), (floor / 2) * (1 - value / size) + 2));
        context.stroke();
      }
      context.fillStyle = css(colours.ink);
      context.font = "11px sans-serif";
      context.textAlign = "left";
      context.fillText(words.before((count - 1) / 2), 2, height - 3);
      context.textAlign = "center";
      context.fillText("0", width / 2, height - 3);
      context.textAlign = "right";
      context.fillText(words.after((count - 1) / 2), width - 2, height - 3);
    }, { role: "img", "aria-label": words.profile });
  }

  /* Two tokens, each with its content and its position, and an arrow for each part of a score. */
  function picture(words) {
    const box = (x, y, kind, word) => [
      makeSvg("rect", { x, y, width: 84, height: 30, rx: 6, class: kind }),
      makeSvg("text", { x: x + 42, y: y + 19 }, word),
    ];
    const arrow = (part, y1, y2, at) => {
      const angle = Math.atan2(y2 - y1, 168);
      const head = [-0.5, 0.5].map((turn) => makeSvg("line", {
        class: part, x1: 264, y1: y2, x2: 264 - 9 * Math.cos(angle + turn), y2: y2 - 9 * Math.sin(angle + turn),
      }));
      const [x, y] = [96 + 168 * at, y1 + (y2 - y1) * at];
      return [makeSvg("line", { class: part, x1: 96, y1, x2: 264, y2 }), ...head, makeSvg("text", { x, y: y - 6 }, part)];
    };
    return makeSvg("svg", { viewBox: "0 0 360 116", role: "img", "aria-label": words.idea },
      makeSvg("text", { x: 50, y: 12 }, words.queryToken), makeSvg("text", { x: 310, y: 12 }, words.keyToken),
      ...box(8, 22, "content", words.content), ...box(8, 78, "position", words.position),
      ...box(268, 22, "content", words.content), ...box(268, 78, "position", words.position),
      ...arrow("c2c", 37, 37, 0.5), ...arrow("c2p", 41, 89, 0.76), ...arrow("p2c", 89, 41, 0.24));
  }

  return { ARROWS, make, palette, mix, between, css, shown, attentionColour, pixels, matrix, linesBetween, profilePlot, picture };
})();
