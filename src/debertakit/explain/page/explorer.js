"use strict";

/* The attention explorer.

   draw(container, data): data comes from debertakit.explain.page.page_data. Each model has its own column, with its own
   layer, head and selected token. All models show the same text. Texts and tokens are inserted only as text nodes. */

const draw = (() => {
  const WORDS = {
    en: {
      title: "Attention explorer",
      other: "中文",
      lead: "Each row of a matrix is a query token. Each column is a key token that receives attention.",
      text: "Text",
      layer: "Layer",
      head: "Head",
      map: "All heads, coloured by the position share of their scores",
      plainMap: "All heads",
      cell: (layer, head) => `layer ${layer}, head ${head}`,
      content: "content",
      position: "position",
      plain: "This model has no separate position scores, so only its attention is shown.",
      attention: "Attention",
      c2c: "Content to content (c2c)",
      c2p: "Content to position (c2p)",
      p2c: "Position to content (p2c)",
      p2p: "Position to position (p2p)",
      partsNote: "Parts of the attention scores, on one colour scale. The mean of each row is subtracted.",
      follow: "Select a token",
      attendsTo: (token) => `${token} attends to`,
      token: "token",
      profile: "By distance",
      profileNote: "Mean attention (bars) and mean position score (line), by distance to the key token.",
      before: "before",
      after: "after",
      keys: "Arrow keys move through the matrix and the map.",
      from: (query, key, value) => `from ${query} to ${key}: ${value}`,
    },
    zh: {
      title: "注意力浏览器",
      other: "English",
      lead: "矩阵的每一行是一个查询词元，每一列是一个被关注的键词元。",
      text: "文本",
      layer: "层",
      head: "头",
      map: "所有注意力头，颜色表示得分中位置部分的占比",
      plainMap: "所有注意力头",
      cell: (layer, head) => `第 ${layer} 层，第 ${head} 头`,
      content: "内容",
      position: "位置",
      plain: "该模型没有单独的位置得分，只显示注意力。",
      attention: "注意力",
      c2c: "内容到内容（c2c）",
      c2p: "内容到位置（c2p）",
      p2c: "位置到内容（p2c）",
      p2p: "位置到位置（p2p）",
      partsNote: "注意力得分的各部分，采用同一颜色标度，每行已减去均值。",
      follow: "选择一个词元",
      attendsTo: (token) => `${token} 关注的词元`,
      token: "词元",
      profile: "按距离",
      profileNote: "平均注意力（柱）和平均位置得分（线），按与键词元的距离排列。",
      before: "之前",
      after: "之后",
      keys: "方向键可在矩阵和总览图中移动。",
      from: (query, key, value) => `从 ${query} 到 ${key}：${value}`,
    },
  };

  /* Elements: make("p", {class: "note"}, "text", child). */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  }

  function select(label, count, chosen, choose, name = String) {
    const options = Array.from({ length: count }, (_, i) => make("option", { value: i, selected: i === chosen }, name(i)));
    const box = make("select", { onchange: () => choose(Number(box.value)) }, ...options);
    return make("label", {}, make("span", {}, label), box);
  }

  const decoded = new WeakMap();

  /* Decode the values of one head from base64 bytes (written by page.py). */
  function unpack(compact, index, size) {
    if (!decoded.has(compact)) decoded.set(compact, Uint8Array.from(atob(compact.bytes), (c) => c.charCodeAt(0)));
    const bytes = decoded.get(compact).subarray(index * size, (index + 1) * size);
    return Float32Array.from(bytes, (byte) => compact.low[index] + compact.step[index] * byte);
  }

  function palette() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
    return { paper: colour("--paper"), ink: colour("--ink"), high: colour("--high"), low: colour("--low") };
  }

  const mix = (from, to, amount) => from.map((channel, i) => Math.round(channel + (to[i] - channel) * amount));
  /* Blue: all content. Orange: all position. Background colour: half and half. */
  const between = (colours, share) =>
    mix(colours.paper, share > 0.5 ? colours.low : colours.high, Math.min(1, Math.abs(2 * share - 1)));
  const css = (colour) => `rgb(${colour.join(" ")})`;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const shown = (token) => token.trim() || "␣";

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

  /* A matrix. If its cells are large enough, tokens are written along its left and top edges. */
  function matrix(tokens, labelled, values, colourOf, cursor, move, describe) {
    const length = tokens.length;
    const ruler = document.createElement("canvas").getContext("2d");
    ruler.font = "12px sans-serif";
    const longest = Math.max(...tokens.map((token) => ruler.measureText(shown(token)).width)) + 10;
    const edge = (width) => (labelled && (width * 0.76) / length >= 8 ? Math.min(width * 0.24, longest) : 0);
    const { element, repaint } = canvas(
      1,
      (context, width) => {
        const colours = palette();
        const margin = edge(width);
        const side = (width - margin) / length;
        const image = new ImageData(length, length);
        const cells = values();
        const tint = colourOf(colours);
        for (let cell = 0; cell < cells.length; cell++) image.data.set([...tint(cells[cell]), 255], 4 * cell);
        const small = document.createElement("canvas");
        small.width = small.height = length;
        small.getContext("2d").putImageData(image, 0, 0);
        context.clearRect(0, 0, width, width);
        context.imageSmoothingEnabled = false;
        context.drawImage(small, margin, margin, width - margin, width - margin);
        const { query, key } = cursor();
        context.strokeStyle = css(colours.ink);
        context.strokeRect(margin, margin + query * side, width - margin, side);
        context.strokeRect(margin + key * side, margin, side, width - margin);
        if (!margin) return;
        context.font = `${Math.min(12, side)}px sans-serif`;
        context.textBaseline = "middle";
        tokens.forEach((token, i) => {
          context.fillStyle = css(colours.ink);
          context.globalAlpha = i === query || i === key ? 1 : 0.65;
          context.textAlign = "right";
          context.fillText(shown(token), margin - 4, margin + (i + 0.5) * side, margin - 6);
          context.save();
          context.translate(margin + (i + 0.5) * side, margin - 4);
          context.rotate(-Math.PI / 2);
          context.textAlign = "left";
          context.fillText(shown(token), 0, 0, margin - 6);
          context.restore();
        });
        context.globalAlpha = 1;
      },
      { tabindex: 0, role: "img" },
    );
    const point = (event) => {
      const box = element.getBoundingClientRect();
      const margin = edge(box.width);
      const at = (position) => Math.floor(((position - margin) / (box.width - margin)) * length);
      const [query, key] = [at(event.clientY - box.top), at(event.clientX - box.left)];
      if (Math.min(query, key) >= 0 && Math.max(query, key) < length) move(query, key);
    };
    element.addEventListener("pointermove", point);
    element.addEventListener("pointerdown", point);
    element.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const { query, key } = cursor();
      const inside = (place) => Math.max(0, Math.min(length - 1, place));
      move(inside(query + step[0]), inside(key + step[1]));
    });
    return () => {
      repaint();
      element.setAttribute("aria-label", describe());
      return element;
    };
  }

  /* Attention (bars) and position scores (line) by the position of the key token: earlier on the left, later on the right. */
  function profilePlot(words, bars, line) {
    return canvas(0.42, (context, width, height) => {
      const colours = palette();
      const attention = bars();
      const scores = line();
      const count = attention.length;
      const floor = height - 16;
      const x = (i) => ((count - 1 - i) + 0.5) * (width / count); // distances i - j ascend, but earlier keys go left
      context.clearRect(0, 0, width, height);
      const most = Math.max(...attention, 1e-9);
      context.fillStyle = css(mix(colours.paper, colours.high, 0.75));
      attention.forEach((value, i) => {
        const tall = (value / most) * (floor - 4);
        context.fillRect(x(i) - (width / count) * 0.4, floor - tall, (width / count) * 0.8, tall);
      });
      if (scores) {
        const size = Math.max(...scores.map(Math.abs), 1e-9);
        context.strokeStyle = css(colours.low);
        context.lineWidth = 2;
        context.beginPath();
        scores.forEach((value, i) => context.lineTo(x(i), (floor / 2) * (1 - value / size) + 2));
        context.stroke();
      }
      context.fillStyle = css(colours.ink);
      context.font = "11px sans-serif";
      context.textAlign = "left";
      context.fillText(`${(count - 1) / 2} ${words.before}`, 2, height - 3);
      context.textAlign = "center";
      context.fillText("0", width / 2, height - 3);
      context.textAlign = "right";
      context.fillText(`${(count - 1) / 2} ${words.after}`, width - 2, height - 3);
    });
  }

  /* One button per head. Arrow keys move between them. */
  function headMap(words, model, text, state, change) {
    const share = text.shares && ((layer, head) => 1 - text.shares.c2c[layer][head]);
    const colours = palette();
    const buttons = [];
    const go = (layer, head) => {
      if (layer < 0 || head < 0 || layer >= model.layers || head >= model.heads) return;
      change(layer, head);
      buttons[layer][head].focus();
    };
    const rows = [];
    for (let layer = 0; layer < model.layers; layer++) {
      buttons.push([]);
      for (let head = 0; head < model.heads; head++) {
        const name = words.cell(layer, head) + (share ? `, ${words.position} ${percent(share(layer, head))}` : "");
        const keys = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
        const button = make("button", {
          type: "button",
          "aria-label": name,
          title: name,
          onclick: () => change(layer, head),
          onkeydown: (event) => {
            if (!keys[event.key]) return;
            event.preventDefault();
            go(layer + keys[event.key][0], head + keys[event.key][1]);
          },
        });
        if (share) button.style.background = css(between(colours, share(layer, head)));
        buttons[layer].push(button);
      }
      rows.push(make("div", { class: "row" }, ...buttons[layer]));
    }
    const update = () =>
      buttons.forEach((row, layer) =>
        row.forEach((button, head) => {
          const chosen = layer === state.layer && head === state.head;
          button.setAttribute("aria-pressed", chosen);
          button.tabIndex = chosen ? 0 : -1;
        }),
      );
    const label = share ? words.map : words.plainMap;
    return { element: make("div", { class: "map", role: "group", "aria-label": label }, ...rows), label, update };
  }

  /* The column of one model. */
  function column(words, model, text, state) {
    const length = text.tokens.length;
    const index = () => state.layer * model.heads + state.head;
    const values = (name) => unpack(text.matrices[name], index(), length * length);
    state.query = Math.min(state.query, length - 1);
    state.key = Math.min(state.key, length - 1);

    const move = (query, key) => {
      Object.assign(state, { query, key });
      refresh();
    };
    const choose = (layer, head) => {
      Object.assign(state, { layer, head });
      refresh();
    };
    const cursor = () => state;
    const describe = (name) => () => {
      const value = values(name)[state.query * length + state.key];
      const told = name === "attention" ? `${(100 * value).toFixed(1)} %` : value.toFixed(2);
      return `${words[name]}. ` + words.from(shown(text.tokens[state.query]), shown(text.tokens[state.key]), told);
    };
    const attentionColour = (colours) => (value) => mix(colours.paper, colours.high, Math.sqrt(Math.max(0, value)));
    const partColour = (colours) => {
      let most = 1e-9; // one scale for all parts of the head
      for (const name of model.parts) for (const value of values(name)) most = Math.max(most, Math.abs(value));
      return (value) => mix(colours.paper, value > 0 ? colours.high : colours.low, Math.abs(value) / most);
    };

    const panels = ["attention", ...model.parts].map((name) => {
      const whole = name === "attention";
      const colour = whole ? attentionColour : partColour;
      return {
        name,
        update: matrix(text.tokens, whole, () => values(name), colour, cursor, move, describe(name)),
      };
    });
    const figures = panels.map(({ name, update }) =>
      make("figure", { class: name }, make("figcaption", {}, words[name]), update()),
    );

    const layers = select(words.layer, model.layers, state.layer, (layer) => choose(layer, state.head));
    const heads = select(words.head, model.heads, state.head, (head) => choose(state.layer, head));
    const map = headMap(words, model, text, state, choose);
    const bar = make("div", { class: "bar", "aria-hidden": "true" }, make("i"));
    const told = make("p", { class: "shares" });

    const tokens = text.tokens.map((token, i) =>
      make(
        "button",
        { type: "button", onclick: () => move(i, state.key), onpointerenter: () => move(i, state.key), onfocus: () => move(i, state.key) },
        shown(token),
      ),
    );
    const table = make("tbody");
    const caption = make("caption", { "aria-live": "polite" });
    const partHeads = model.parts.map((part) => make("th", { scope: "col" }, part));
    const looks = make(
      "table",
      {},
      caption,
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, words.token), make("th", { scope: "col" }, words.attention), ...partHeads)),
      table,
    );

    const distances = 2 * length - 1;
    const position = text.profile.position;
    const curve = profilePlot(
      words,
      () => unpack(text.profile.attention, index(), distances),
      () => position && [...unpack(position, index(), distances)],
    );

    function refresh() {
      layers.lastChild.value = state.layer;
      heads.lastChild.value = state.head;
      map.update();
      panels.forEach(({ update }) => update());
      curve.repaint();
      if (text.shares) {
        const content = text.shares.c2c[state.layer][state.head];
        bar.style.setProperty("--share", Math.max(0, Math.min(1, content)));
        told.textContent = `${words.content} ${percent(content)} · ${words.position} ${percent(1 - content)}`;
      }
      const row = values("attention").subarray(state.query * length, (state.query + 1) * length);
      const colours = palette();
      tokens.forEach((button, i) => {
        button.setAttribute("aria-pressed", i === state.query);
        button.style.background = css(mix(colours.paper, colours.high, 0.8 * Math.sqrt(Math.max(0, row[i]))));
      });
      caption.textContent = words.attendsTo(shown(text.tokens[state.query]));
      const most = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 5);
      table.replaceChildren(
        ...most.map((key) =>
          make(
            "tr",
            {},
            make("th", { scope: "row" }, shown(text.tokens[key])),
            make("td", {}, `${(100 * row[key]).toFixed(1)} %`),
            ...model.parts.map((part) => make("td", {}, values(part)[state.query * length + key].toFixed(2))),
          ),
        ),
      );
    }
    refresh();

    return make(
      "section",
      { class: "model" },
      make("h2", {}, model.name),
      make("div", { class: "pickers" }, layers, heads),
      make("p", { class: "note" }, map.label),
      map.element,
      ...(model.parts.length ? [bar, told] : [make("p", { class: "note" }, words.plain)]),
      figures[0],
      ...(model.parts.length ? [make("p", { class: "note" }, words.partsNote)] : []),
      make("div", { class: "parts" }, ...figures.slice(1)),
      make("h3", {}, words.follow),
      make("div", { class: "tokens", role: "group", "aria-label": words.follow }, ...tokens),
      looks,
      make("h3", {}, words.profile),
      curve.element,
      make("p", { class: "note" }, words.profileNote),
    );
  }

  return function draw(container, data) {
    const page = { language: /^zh/.test(navigator.language) ? "zh" : "en", text: 0 };
    const states = data.models.map((model) => ({ layer: model.layers - 1, head: 0, query: 0, key: 0 }));
    const render = () => {
      const words = WORDS[page.language];
      document.documentElement.lang = page.language;
      document.title = words.title;
      const first = data.models[0];
      const name = (i) => {
        const letters = [...first.texts[i].tokens.slice(1, -1).join("").trim()];
        return letters.length > 48 ? letters.slice(0, 47).join("") + "…" : letters.join("");
      };
      const language = make(
        "button",
        {
          type: "button",
          class: "language",
          lang: page.language === "en" ? "zh" : "en",
          onclick: () => {
            page.language = page.language === "en" ? "zh" : "en";
            render();
            container.querySelector(".language").focus();
          },
        },
        words.other,
      );
      const texts = select(words.text, first.texts.length, page.text, (i) => {
        page.text = i;
        render();
      }, name);
      container.replaceChildren(
        make("header", {}, make("h1", {}, words.title), language),
        make("p", { class: "note" }, `${words.lead} ${words.keys}`),
        make("div", { class: "pickers" }, texts),
        make("div", { class: "models" }, ...data.models.map((model, i) => column(words, model, model.texts[page.text], states[i]))),
      );
    };
    render();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  };
})();
