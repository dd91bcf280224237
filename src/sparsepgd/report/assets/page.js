"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const PAGE = 36;
  const LARGEST = 16;
  const several = data.runs.length > 1;
  const shotsOf = data.images.map(() => []);
  data.shots.forEach((shot, number) => {
    shot.number = number;
    shotsOf[shot.image].push(shot);
  });

  // ---- small helpers: text is only ever written as text
  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const image = (uri, className, words) => {
    const node = make("img", className);
    node.src = uri;
    node.alt = words;
    node.decoding = "async";
    return node;
  };
  const option = (select, value, text) => {
    const node = make("option", "", text);
    node.value = value;
    select.append(node);
  };
  const setOf = (shot) => data.sets[data.images[shot.image].set];
  const trueName = (shot) => setOf(shot).labels[data.images[shot.image].label];
  const said = (shot, number) => data.runs[shot.run].names[number];
  const sure = (share) => (share === null ? "" : `${(100 * share).toFixed(1)} %`);
  const outcomes = { fooled: "fooled", withstood: "withstood", wrong: "misclassified clean" };
  const outcome = (shot) => (shot.attack === null ? outcomes[shot.outcome] : `fooled by ${shot.attack}`);

  const svgNode = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const boxesOf = (shot) => {
    const { width, height } = setOf(shot);
    const drawing = svgNode("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "boxes" });
    const room = Math.max(width, height) / 40;
    for (const [x, y, w, h] of shot.boxes) {
      const left = Math.max(x - room, 0), top = Math.max(y - room, 0);
      const right = Math.min(x + w + room, width), bottom = Math.min(y + h + room, height);
      drawing.append(svgNode("rect", { x: left, y: top, width: right - left, height: bottom - top }));
    }
    return drawing;
  };

  // kind: "clean", "adversarial" or "difference"
  const picture = (shot, kind) => {
    const { width, height, sharp } = setOf(shot);
    const node = make("span", "picture");
    node.style.aspectRatio = `${width} / ${height}`;
    node.classList.toggle("sharp", sharp);
    node.classList.toggle("grey", kind === "difference");
    if (kind !== "difference") node.append(image(data.images[shot.image].clean, "clean", ""));
    const over = { adversarial: shot.changes, difference: shot.difference }[kind];
    if (over) node.append(image(over, "changes", ""));
    if (kind !== "clean") node.append(boxesOf(shot));
    return node;
  };

  // ---- the gallery
  const cell = (shot, kind, says, sub, wrong) => {
    const node = make("span", "cell");
    node.append(picture(shot, kind), make("span", wrong ? "says false" : "says", says), make("span", "sub", sub));
    return node;
  };
  const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
  const button = (shot) => {
    const node = make("button", "shot");
    const run = data.runs[shot.run];
    const label = data.images[shot.image].label;
    node.type = "button";
    node.setAttribute(
      "aria-label",
      `Image ${data.images[shot.image].index}, ${trueName(shot)}${several ? `, run ${run.letter}` : ""}: ` +
        `${outcome(shot)}, ${said(shot, shot.after)}. Enlarge`,
    );
    node.id = `shot-${shot.number}`;
    if (several) {
      const line = make("span", "run");
      line.append(make("span", `badge c${run.colour}`, run.letter), make("span", "", run.label));
      node.append(line);
    }
    node.append(
      cell(shot, "clean", said(shot, shot.before), sure(shot.sure_before), shot.before !== label),
      cell(shot, "adversarial", said(shot, shot.after), sure(shot.sure_after), shot.after !== label),
      cell(shot, "difference", plural(shot.pixels, "pixel"), shot.outcome === "wrong" ? "not attacked" : plural(shot.steps, "step")),
      make("span", "sub by", outcome(shot)),
    );
    node.addEventListener("click", () => open(shot));
    return node;
  };
  const card = (shots) => {
    const node = make("article", "card");
    const title = make("h3");
    const row = make("a", "", `#${data.images[shots[0].image].index}`);
    row.href = `#row-${shots[0].number}`;
    row.setAttribute("aria-label", `Row of image ${data.images[shots[0].image].index} in the table`);
    title.append(make("span", "", trueName(shots[0])), row);
    node.append(title, ...shots.map(button));
    return node;
  };

  let found = []; // for each image that is shown, its shots
  let shown = 0;
  const value = (id) => byId(id).value;
  const matches = (shot) =>
    (!value("by-class") || trueName(shot) === value("by-class")) &&
    (!value("by-attack") || shot.attack === value("by-attack")) &&
    (!value("by-outcome") || shot.outcome === value("by-outcome")) &&
    (!value("by-run") || String(shot.run) === value("by-run"));
  const more = () => {
    byId("cards").append(...found.slice(shown, shown + PAGE).map(card));
    shown = Math.min(shown + PAGE, found.length);
    byId("more").hidden = shown >= found.length;
  };
  const filter = () => {
    found = shotsOf.map((shots) => shots.filter(matches)).filter((shots) => shots.length);
    shown = 0;
    byId("cards").replaceChildren();
    more();
    byId("found").textContent = `${found.length} of ${plural(data.images.length, "image")}`;
  };
  const choices = () => {
    const unique = (words) => [...new Set(words)].filter((word) => word !== null);
    for (const name of unique(data.shots.map(trueName)).sort()) option(byId("by-class"), name, name);
    for (const name of unique(data.shots.map((shot) => shot.attack)).sort()) option(byId("by-attack"), name, name);
    data.runs.forEach((run, place) => option(byId("by-run"), place, `${run.letter}  ${run.label}`));
  };

  // what a link leads to must be there before the browser goes to it: an open table, a card that is drawn
  const prepare = (hash) => {
    const [, kind, number] = /^#(row|shot)-(\d+)$/.exec(hash) || [];
    if (kind === "row") byId("table").open = true;
    if (kind !== "shot" || !data.shots[number]) return;
    if (!found.some((shots) => shots.includes(data.shots[number]))) {
      byId("filters").reset();
      filter();
    }
    while (!byId(`shot-${number}`)) more();
  };

  // ---- one image, enlarged
  let current = null;
  let scale = 1;
  const dialog = byId("zoom");
  const order = () => found.flat();
  const fact = (name, words, share, wrong) => {
    const node = make("div");
    node.append(make("dt", "", name), make("dd", "", share === null || share === undefined ? words : `${words}, ${sure(share)}`));
    if (share !== null && share !== undefined) {
      const bar = make("div", wrong ? "sure false" : "sure");
      const inner = make("i");
      inner.style.width = `${100 * share}%`;
      bar.append(inner);
      node.append(bar);
    }
    return node;
  };
  const resize = () => {
    const { width, height } = setOf(current);
    const stage = byId("stage");
    const fit = Math.min((stage.clientWidth - 2) / width, (stage.clientHeight - 2) / height);
    byId("picture").style.width = `${fit * width * scale}px`;
    byId("scale").textContent = `${scale}×`;
    byId("smaller").disabled = scale <= 1;
    byId("larger").disabled = scale >= LARGEST;
  };
  const slide = () => {
    const at = Number(byId("slider").value);
    const over = byId("picture").querySelector(".changes");
    const handle = byId("picture").querySelector(".handle");
    const whole = byId("as-difference").checked;
    if (over) over.style.clipPath = whole ? "" : `inset(0 ${100 - at}% 0 0)`;
    if (handle) {
      handle.style.left = `${at}%`;
      handle.hidden = whole || at === 0 || at === 100;
    }
    byId("slider").disabled = whole;
  };
  const paint = () => {
    const node = picture(current, byId("as-difference").checked ? "difference" : "adversarial");
    node.id = "picture";
    node.querySelector(".boxes").style.display = byId("zoom-boxes").checked ? "" : "none";
    node.append(make("span", "handle"));
    byId("picture").replaceWith(node);
    resize();
    slide();
  };
  const show = (shot) => {
    current = shot;
    const run = data.runs[shot.run];
    const { index, label } = data.images[shot.image];
    byId("zoom-run").textContent = several ? `${run.letter} · ${run.label}` : `Image ${index}`;
    byId("zoom-title").textContent = several ? `${trueName(shot)} (image ${index})` : trueName(shot);
    const facts = [
      fact("clean image is read as", said(shot, shot.before), shot.sure_before, shot.before !== label),
      fact("adversarial image is read as", said(shot, shot.after), shot.sure_after, shot.after !== label),
      fact("outcome", outcome(shot)),
      fact("changed", plural(shot.pixels, "pixel")),
      fact("search", `${plural(shot.steps, "step")}, ${shot.queries.toLocaleString("en")} ${shot.queries === 1 ? "query" : "queries"}`),
    ];
    byId("zoom-facts").replaceChildren(...facts);
    byId("zoom-row").href = `#row-${shot.number}`;
    const all = order();
    byId("previous").disabled = all.indexOf(shot) <= 0;
    byId("next").disabled = all.indexOf(shot) >= all.length - 1;
    paint();
  };
  const open = (shot) => {
    scale = 1;
    byId("zoom-boxes").checked = byId("boxes").checked;
    dialog.showModal();
    show(shot);
  };
  const go = (by) => {
    const all = order();
    const next = all[all.indexOf(current) + by];
    if (next) show(next);
  };
  const enlarge = (factor) => {
    const next = scale * factor;
    if (next < 1 || next > LARGEST) return;
    scale = next;
    resize();
  };
  const drag = (event) => {
    if (event.buttons !== 1 || byId("as-difference").checked) return;
    const box = byId("picture").getBoundingClientRect();
    byId("slider").value = Math.round((100 * (event.clientX - box.left)) / box.width);
    slide();
  };
  const toggle = (id) => {
    byId(id).checked = !byId(id).checked;
    paint();
  };
  const keys = {
    n: () => go(1), p: () => go(-1), "+": () => enlarge(2), "=": () => enlarge(2), "-": () => enlarge(0.5),
    d: () => toggle("as-difference"), h: () => toggle("zoom-boxes"),
  };

  byId("filters").addEventListener("change", (event) => {
    if (event.target.id !== "boxes") filter();
    document.body.classList.toggle("boxed", byId("boxes").checked);
  });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    if (dialog.open) dialog.close();
    prepare(link.hash);
  });
  byId("more").addEventListener("click", more);
  byId("slider").addEventListener("input", slide);
  byId("as-difference").addEventListener("change", paint);
  byId("zoom-boxes").addEventListener("change", paint);
  byId("smaller").addEventListener("click", () => enlarge(0.5));
  byId("larger").addEventListener("click", () => enlarge(2));
  byId("previous").addEventListener("click", () => go(-1));
  byId("next").addEventListener("click", () => go(1));
  byId("close").addEventListener("click", () => dialog.close());
  byId("stage").addEventListener("pointerdown", drag);
  byId("stage").addEventListener("pointermove", drag);
  byId("stage").addEventListener("dragstart", (event) => event.preventDefault());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("keydown", (event) => {
    const act = keys[event.key.toLowerCase()];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  window.addEventListener("resize", () => dialog.open && resize());
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.style.colorScheme ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.style.colorScheme = dark ? "light" : "dark";
  });
  choices();
  document.body.classList.toggle("boxed", byId("boxes").checked);
  filter();
  prepare(location.hash);
})();
