"use strict";

/* The attention explorer.

   draw(container, data, options): data comes from debertakit.explain.page.page_data. Each model has its own panel, with
   its own layer, head and selected token. All models show the same text.
   options.language: "en" or "zh"; default: the browser's. options.title: false inside a page that has its own title.
   Returns { speak(language) }. */

const draw = (() => {
  const { ARROWS, make, palette, mix, between, css, shown, attentionColour, pixels } = explorerDrawing;
  const { matrix, linesBetween, profilePlot, picture } = explorerDrawing;
  const MEAN = -1; // the mean of all heads, as a head
  const MOST = 8; // rows of the table
  const percent = (share) => `${Math.round(100 * share)} %`;
  const exact = (share) => `${(100 * share).toFixed(1)} %`;
  const signed = (score) => score.toFixed(2).replace("-", "−");

  function select(label, choices, chosen, choose) {
    const options = choices.map(([value, name]) => make("option", { value, selected: value === chosen }, String(name)));
    const box = make("select", { onchange: () => choose(Number(box.value)) }, ...options);
    return make("label", {}, make("span", {}, label), box);
  }
  const upTo = (count) => Array.from({ length: count }, (_, i) => [i, i]);

  const decoded = new WeakMap();

  /* Decode the values of one head from base64 bytes (written by page.py). */
  function unpack(compact, index, size) {
    if (!decoded.has(compact)) decoded.set(compact, Uint8Array.from(atob(compact.bytes), (c) => c.charCodeAt(0)));
    const bytes = decoded.get(compact).subarray(index * size, (index + 1) * size);
    return Float32Array.from(bytes, (byte) => compact.low[index] + compact.step[index] * byte);
  }

  const average = (arrays) => arrays[0].map((_, i) => arrays.reduce((sum, values) => sum + values[i], 0) / arrays.length);

  /* reader(compact, size)(layer, head): the values of a head, or the mean over all heads of the layer. */
  function reader(model) {
    const known = new Map();
    return (compact, size) => (layer, head) => {
      if (!known.has(compact)) known.set(compact, new Map());
      const index = layer * model.heads + head;
      const name = head === MEAN ? `mean ${layer}` : index;
      const found = known.get(compact);
      if (!found.has(name)) {
        const heads = upTo(model.heads).map(([each]) => layer * model.heads + each);
        found.set(name, head === MEAN ? average(heads.map((each) => unpack(compact, each, size))) : unpack(compact, index, size));
      }
      return found.get(name);
    };
  }

  /* One button per head. Arrow keys move between them. */
  function headMap(words, model, share, state, choose) {
    const colours = palette();
    const buttons = [];
    const go = (layer, head) => {
      if (layer < 0 || head < 0 || layer >= model.layers || head >= model.heads) return;
      choose(layer, head);
      buttons[layer][head].focus();
    };
    const rows = upTo(model.layers).map(([layer]) => {
      const row = upTo(model.heads).map(([head]) => {
        const name = words.cell(layer, head) + (share ? `, ${words.position} ${percent(share(layer, head))}` : "");
        const button = make("button", {
          type: "button",
          "aria-label": name,
          title: name,
          onclick: () => choose(layer, head),
          onkeydown: (event) => {
            const step = ARROWS[event.key];
            if (!step) return;
            event.preventDefault();
            go(layer + step[0], head + step[1]);
          },
        });
        if (share) button.style.background = css(between(colours, share(layer, head)));
        return button;
      });
      buttons.push(row);
      return make("div", { class: "row" }, ...row);
    });
    const update = () =>
      buttons.forEach((row, layer) =>
        row.forEach((button, head) => {
          const chosen = layer === state.layer && head === state.head;
          button.setAttribute("aria-pressed", chosen);
          button.tabIndex = chosen || (state.head === MEAN && layer === state.layer && head === 0) ? 0 : -1;
        }),
      );
    const label = share ? words.map : words.plainMap;
    const element = make("div", { class: "map", role: "group", "aria-label": label }, ...rows);
    element.style.setProperty("--layers", model.layers);
    return { element, update };
  }

  /* Thumbnails of all heads of the layer, after the mean. */
  function thumbnails(words, model, attention, length, state, choose) {
    const element = make("div", { class: "thumbs", role: "group" });
    element.style.setProperty("--count", model.heads + 1);
    let layer = null;
    const update = () => {
      if (layer !== state.layer) {
        layer = state.layer;
        const tint = attentionColour(palette());
        element.setAttribute("aria-label", words.thumbs(layer));
        element.replaceChildren(...[MEAN, ...upTo(model.heads).map(([head]) => head)].map((head) => {
          const name = head === MEAN ? words.meanHead : words.cell(layer, head);
          return make("button", { type: "button", "data-head": head, "aria-label": name, title: name, onclick: () => choose(layer, head) },
            pixels(attention(layer, head), length, tint), head === MEAN ? words.mean : String(head));
        }));
      }
      for (const button of element.children) button.setAttribute("aria-pressed", Number(button.dataset.head) === state.head);
    };
    return { element, update };
  }

  const legend = (kind, low, high) => make("div", { class: "legend" }, make("span", {}, low), make("i", { class: kind }), make("span", {}, high));
  const card = (title, ...children) => make("section", { class: "card" }, ...(title ? [make("h3", {}, title)] : []), ...children);

  /* A table cell with a bar behind the number. */
  function shareCell(share) {
    const cell = make("td", { class: "share" }, exact(share));
    cell.style.setProperty("--share", share);
    return cell;
  }

  const ideaCard = (words, ...before) => make("div", { class: "idea" }, ...before, picture(words), make("p", {}, words.ideaText));

  /* The panel of one model. idea: the card that explains the parts, if it belongs into the panel. */
  function panel(words, model, text, state, idea) {
    const length = text.tokens.length;
    const read = reader(model);
    const sources = Object.fromEntries(Object.entries(text.matrices).map(([name, compact]) => [name, read(compact, length * length)]));
    const values = (name) => sources[name](state.layer, state.head);
    const token = (place) => shown(text.tokens[place]);
    state.query = Math.min(state.query, length - 1);
    state.key = Math.min(state.key, length - 1);

    const contents = text.shares && text.shares.c2c;
    const contentShare = () =>
      state.head === MEAN ? average(contents[state.layer].map((share) => [share]))[0] : contents[state.layer][state.head];

    const value = (name) => {
      const found = values(name)[state.query * length + state.key];
      return name === "attention" ? exact(found) : signed(found);
    };
    const readout = make("output", { class: "readout" });
    const tip = make("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    const move = (query, key = state.key, event = null) => {
      Object.assign(state, { query, key });
      refresh();
      if (event) point(event);
    };
    /* The values under the pointer or the finger, in a box next to it. */
    const point = (event) => {
      const figure = event.target.closest("figure");
      const box = figure.getBoundingClientRect();
      figure.append(tip);
      tip.hidden = false;
      tip.replaceChildren(make("b", {}, `${token(state.query)} → ${token(state.key)}`), `${words.attention} ${value("attention")}`,
        ...model.parts.flatMap((part) => [make("br"), `${part} ${value(part)}`]));
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      tip.style.left = `${Math.max(60, Math.min(box.width - 60, x))}px`;
      tip.style.top = `${y}px`;
      tip.classList.toggle("below", y < 110);
    };
    const choose = (layer, head) => {
      Object.assign(state, { layer, head });
      refresh();
    };
    const cursor = () => state;
    const describe = (name) => () => `${words[name]}. ${words.from(token(state.query), token(state.key), value(name))}`;
    const largest = () => {
      let most = 1e-9; // one scale for all parts of the head
      for (const name of model.parts) for (const each of values(name)) most = Math.max(most, Math.abs(each));
      return most;
    };
    const partColour = (colours) => {
      const most = largest();
      return (each) => mix(colours.paper, each > 0 ? colours.high : colours.low, Math.abs(each) / most);
    };

    const drawings = ["attention", ...model.parts].map((name) => {
      const whole = name === "attention";
      const colourOf = whole ? attentionColour : partColour;
      return matrix(text.tokens, whole, { values: () => values(name), colourOf, cursor, move, describe: describe(name) });
    });
    const figures = ["attention", ...model.parts].map((name, i) =>
      make("figure", { class: name, onpointerleave: (event) => { tip.hidden = event.pointerType !== "touch"; } },
        make("figcaption", {}, make("b", { title: words[name] }, i ? name : words[name]), ...(i ? [] : [` · ${words.axes}`])), drawings[i].element));
    const lines = linesBetween(text.tokens, { values: () => values("attention"), cursor, move, describe: describe("attention") });
    const lineFigure = make("figure", { class: "lines", tabindex: 0, "aria-label": words.lines }, lines.element);
    const views = ["matrix", "lines"].map((view) =>
      make("button", { type: "button", onclick: () => { state.view = view; refresh(); } }, words[view]));

    const layers = select(words.layer, upTo(model.layers), state.layer, (layer) => choose(layer, state.head));
    const heads = select(words.head, [...upTo(model.heads), [MEAN, words.mean]], state.head, (head) => choose(state.layer, head));
    const map = headMap(words, model, contents && ((layer, head) => 1 - contents[layer][head]), state, choose);
    const thumbs = thumbnails(words, model, sources.attention, length, state, choose);
    const split = make("div", { class: "split", "aria-hidden": "true" }, make("i"));
    const told = make("p", { class: "shares" });

    const tokens = text.tokens.map((each, i) =>
      make("button", { type: "button", onclick: () => move(i), onpointerenter: () => move(i), onfocus: () => move(i) }, shown(each)));
    const table = make("tbody");
    const caption = make("caption");
    const columns = [words.token, words.attention, ...model.parts].map((name) => make("th", { scope: "col" }, name));
    const looks = make("table", {}, caption, make("thead", {}, make("tr", {}, ...columns)), table);

    const distances = 2 * length - 1;
    const position = text.profile.position && read(text.profile.position, distances);
    const byDistance = read(text.profile.attention, distances);
    const curve = profilePlot(words, () => byDistance(state.layer, state.head), () => position && [...position(state.layer, state.head)]);
    const scale = legend("score-scale", "", "");

    function refresh() {
      layers.lastChild.value = state.layer;
      heads.lastChild.value = state.head;
      map.update();
      thumbs.update();
      figures[0].hidden = state.view !== "matrix";
      lineFigure.hidden = state.view !== "lines";
      views.forEach((button, i) => button.setAttribute("aria-pressed", state.view === ["matrix", "lines"][i]));
      drawings.forEach((drawing) => drawing.update());
      if (state.view === "lines") lines.update();
      curve.repaint();
      if (contents) {
        const content = contentShare();
        split.style.setProperty("--share", Math.max(0, Math.min(1, content)));
        told.textContent = `${words.content} ${percent(content)} · ${words.position} ${percent(1 - content)}`;
        const most = largest().toFixed(1);
        scale.firstChild.textContent = `−${most}`;
        scale.lastChild.textContent = `+${most}`;
      }
      const all = [value("attention"), ...model.parts.map((part) => `${part} ${value(part)}`)].join(" · ");
      readout.textContent = words.from(token(state.query), token(state.key), all);
      const row = values("attention").subarray(state.query * length, (state.query + 1) * length);
      const colours = palette();
      tokens.forEach((button, i) => {
        button.setAttribute("aria-pressed", i === state.query);
        button.style.background = css(mix(colours.paper, colours.high, 0.5 * Math.sqrt(Math.max(0, row[i]))));
      });
      caption.textContent = words.attendsTo(token(state.query));
      const most = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, MOST);
      table.replaceChildren(...most.map((key) =>
        make("tr", {}, make("th", { scope: "row" }, token(key)), shareCell(row[key]),
          ...model.parts.map((part) => make("td", {}, signed(values(part)[state.query * length + key]))))));
    }
    refresh();

    const overview = contents
      ? card(words.map, map.element, legend("share-scale", words.content, words.position), make("p", { class: "note" }, words.mapNote), split, told)
      : card(words.plainMap, map.element, make("p", { class: "note" }, `${words.mapNote} ${words.plain}`));
    const shared = make("div", { class: "scale" }, scale, make("p", { class: "note" }, words.partsNote));
    const matrices = make("div", {}, make("h3", {}, words.parts), make("div", { class: "parts" }, ...figures.slice(1), shared));
    const parts = make("section", { class: "card wide parts-card" }, matrices, ...(idea ? [idea] : []));
    return make("section", { class: contents ? "model" : "model plain", "aria-label": model.name },
      make("div", {},
        make("div", { class: "card main" },
          make("div", { class: "pickers" }, make("h2", {}, model.name), layers, heads,
            make("div", { class: "views", role: "group", "aria-label": words.view }, ...views)),
          figures[0], lineFigure, readout, legend("attention-scale", "0 %", "100 %"), thumbs.element),
        make("div", { class: "side" },
          ...(contents ? [parts] : []),
          card(words.follow, make("div", { class: "tokens", role: "group", "aria-label": words.follow }, ...tokens), looks),
          make("div", { class: "stack" }, overview,
            card(words.profile, curve.element, make("p", { class: "note" }, contents ? words.profileNote : words.plainProfileNote))))));
  }

  return function draw(container, data, options = {}) {
    const page = { language: options.language || (/^zh/.test(navigator.language) ? "zh" : "en"), text: 0 };
    const states = data.models.map((model) => {
      const [layer, head, query, key] = model.texts[0].opening;
      return { layer, head, query, key, view: "matrix" };
    });
    const first = data.models[0];
    const alone = data.models.length === 1;
    const parts = data.models.some((model) => model.parts.length);
    const name = ({ text }) => {
      const letters = [...text.trim()];
      return letters.length > 48 ? letters.slice(0, 47).join("") + "…" : letters.join("");
    };
    const render = () => {
      const words = EXPLORER_WORDS[page.language];
      const change = () => {
        speak(page.language === "en" ? "zh" : "en");
        container.querySelector(".language").focus();
      };
      const language = make("button", { type: "button", class: "language", lang: page.language === "en" ? "zh" : "en", onclick: change }, words.other);
      const own = options.title !== false;
      if (own) [document.documentElement.lang, document.title] = [page.language, words.title];
      const choices = first.texts.map((text, i) => [i, name(text)]);
      const texts = select(words.text, choices, page.text, (i) => { page.text = i; render(); });
      const { tokens, dropped } = first.texts[page.text];
      container.replaceChildren(
        ...(own ? [make("header", {}, make("h1", {}, words.title), language)] : []),
        ...(choices.length > 1 ? [make("div", { class: "pickers" }, texts)] : []),
        ...(dropped ? [make("p", { class: "warning", role: "status" }, words.dropped(tokens.length, tokens.length + dropped))] : []),
        make("div", { class: "models" }, ...data.models.map((model, i) => panel(words, model, model.texts[page.text], states[i], alone && ideaCard(words)))),
        ...(parts && !alone ? [make("section", { class: "card shared" }, ideaCard(words, make("h3", {}, words.idea)))] : []),
        make("p", { class: "note" }, words.keys),
      );
    };
    const speak = (language) => {
      page.language = language;
      render();
    };
    render();
    container.drawn = data; // a later call with other data replaces this drawing
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => container.drawn === data && render());
    return { speak };
  };
})();
