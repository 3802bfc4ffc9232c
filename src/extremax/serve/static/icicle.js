// The label tree as an icicle: width = rows, colour = held-out accuracy.  Nodes are asked for when they are needed.
// A source has tree(node, depth), path(label id) and search(text, limit), each a promise: the server, or a report.
"use strict";

xm.icicle = (source, about) => {
  const {h} = xm;
  const nodes = new Map(); // id -> node
  const below = new Map(); // id -> ids of its children, where they are known
  const cells = new Map(); // id -> element
  let focus = 0; // the node across the whole width
  let active = 0; // the node that has the keyboard
  let found = null; // a class that was searched for
  let wanted = 0; // number of the last request

  const levels = () => (window.innerWidth < 736 ? 6 : 7);
  const height = () => (window.innerWidth < 736 ? 44 : 36);

  const box = h("div.icicle", {role: "tree", "aria-label": "Label tree", tabindex: "-1"});
  const crumbs = h("ol.path", {"aria-label": "Path from the root"});
  const facts = h("div.facts", {id: "facts"});
  const status = h("span.visually-hidden", {role: "status"});

  // ---- nodes ----

  const keep = (answer) => {
    for (const node of answer.nodes) nodes.set(node.id, {...nodes.get(node.id), ...node});
    const here = new Set(answer.nodes.map((node) => node.id));
    const parents = new Map();
    for (const node of answer.nodes) {
      if (node.parent === null || !here.has(node.parent)) continue;
      if (!parents.has(node.parent)) parents.set(node.parent, []);
      parents.get(node.parent).push(node.id);
    }
    for (const [parent, children] of parents) below.set(parent, children);
  };
  const load = async (id, depth) => keep(await source.tree(id, depth));

  // Whether a level that would be shown is missing.
  const lacks = (id, depth) => {
    const node = nodes.get(id);
    if (!node) return true;
    if (depth === 0 || node.is_leaf || node.n_hidden) return false;
    const children = below.get(id);
    return !children || children.some((child) => lacks(child, depth - 1));
  };
  const weight = (node) => Math.max(node.n_rows || 0, 0.5 * node.n_classes);

  // Places of the nodes on the screen: left and width as shares of the box.
  const layout = () => {
    const placed = [];
    const place = (id, level, left, width) => {
      placed.push({id, level, left, width});
      const children = below.get(id) || [];
      if (level + 1 >= levels() || width < 0.0015) return;
      const total = children.reduce((sum, child) => sum + weight(nodes.get(child)), 0);
      for (const child of children) {
        const share = width * weight(nodes.get(child)) / total;
        place(child, level + 1, left, share);
        left += share;
      }
    };
    place(focus, 0, 0, 1);
    return placed;
  };

  const title = (node) => (node.is_leaf && node.description ? node.name + " " + node.description : node.name);
  const describe = (node) => title(node) + ", " + (node.is_leaf ? "" : xm.plural(node.n_classes, "class", "classes") + ", ")
    + xm.plural(node.n_rows || 0, "training row") + (about.has_accuracy ? ", held-out accuracy "
      + (node.accuracy === null ? "unknown" : xm.percent(node.accuracy)) : "");

  // ---- drawing ----

  const draw = () => {
    const placed = layout();
    const shown = new Set(placed.map((place) => place.id));
    for (const [id, cell] of cells) if (!shown.has(id)) { cell.remove(); cells.delete(id); }
    const size = height();
    const deepest = Math.max(...placed.map((place) => place.level)) + 1;
    box.style.height = deepest * size + 1 + "px";
    const pixels = box.clientWidth || 800;
    if (!shown.has(active)) active = focus;
    for (const {id, level, left, width} of placed) {
      const node = nodes.get(id);
      let cell = cells.get(id);
      if (!cell) {
        cell = h("div.cell", {role: "treeitem", "data-node": id, onclick: () => go(id), onfocus: () => take(id), onmouseenter: () => tell(id),
          onmouseleave: () => tell(active)}, h("span", {"aria-hidden": "true"}, title(node)));
        if (node.accuracy === null || node.accuracy === undefined) cell.classList.add("none");
        else { cell.style.backgroundColor = xm.colour(node.accuracy); cell.style.color = xm.inkOn(node.accuracy); }
        cells.set(id, cell);
      }
      cell.setAttribute("aria-label", describe(node));
      cell.setAttribute("aria-level", String(node.depth + 1));
      if (!node.is_leaf) cell.setAttribute("aria-expanded", String(below.has(id) && level + 1 < levels()));
      cell.style.left = (100 * left).toFixed(4) + "%";
      cell.style.width = (100 * width).toFixed(4) + "%";
      cell.style.top = level * size + "px";
      cell.classList.toggle("thin", width * pixels < 30);
      cell.classList.toggle("found", id === found);
      cell.tabIndex = id === active ? 0 : -1;
      box.append(cell); // in the order of reading, from the root
    }
    const path = [];
    for (let id = focus; id !== null && id !== undefined; id = nodes.get(id).parent) path.unshift(id);
    xm.replace(crumbs, path.map((id, i) => h("li", null, i === path.length - 1
      ? h("span", {"aria-current": "true"}, nodes.get(id).name)
      : h("button", {type: "button", onclick: () => go(id)}, nodes.get(id).name))));
    tell(active);
  };

  const tell = (id) => {
    const node = nodes.get(id);
    if (!node) return;
    const accuracy = node.accuracy === null || node.accuracy === undefined ? null : h("p", null, "Held-out accuracy ", h("b", null, xm.percent(node.accuracy)),
      " of " + xm.plural(node.n_held_out, "row"),
      node.is_leaf || node.id === 0 || node.inside === null ? "." : "; " + xm.percent(node.inside) + " are predicted as some class of this branch.");
    xm.replace(facts,
      h("p", null, h("b", null, node.name), node.description ? " " + node.description : "", " – ",
        node.is_leaf ? "" : xm.plural(node.n_classes, "class", "classes") + ", ", xm.plural(node.n_rows || 0, about.width === "classes" ? "row" : "training row")),
      accuracy || (about.has_accuracy ? h("p.quiet", null, "No held-out rows.") : null),
      node.labels && node.labels.length ? h("p.quiet", null, "Largest: ", node.labels.map((entry, i) => [i ? ", " : "", h("span.label", null, entry.label),
        entry.description ? " " + entry.description : ""])) : null,
      node.n_hidden ? h("p.quiet", null, "Its " + xm.plural(node.n_hidden, "class", "classes") + " are not in this file; extremax serve shows them.") : null);
  };

  const take = (id) => {
    if (cells.has(active)) cells.get(active).tabIndex = -1;
    active = id;
    cells.get(id).tabIndex = 0;
    tell(id);
  };

  // ---- moving ----

  // Put a node across the whole width.  A class is shown where it is, or with a few levels above it.
  const go = async (id, keyboard) => {
    const number = ++wanted;
    try {
      if (!nodes.has(id)) await load(id, 0);
      const node = nodes.get(id);
      let target = id;
      if (node.is_leaf && cells.has(id)) target = focus;
      else if (node.is_leaf) {
        if (!nodes.has(node.parent)) await load(node.parent, 0);
        await ancestors(node.parent);
        target = node.parent;
        for (let i = 0; i < 3 && nodes.get(target).parent !== null; i++) target = nodes.get(target).parent;
      } else await ancestors(target);
      if (number !== wanted) return;
      focus = target;
      active = node.is_leaf ? id : target;
      if (node.is_leaf) found = id;
      draw();
      if (lacks(target, levels() - 1)) {
        await load(target, levels() - 1);
        if (number !== wanted) return;
        active = node.is_leaf ? id : target; // it may not have been there to be drawn before
        draw();
      }
      if (keyboard && cells.has(active)) cells.get(active).focus();
      status.textContent = describe(nodes.get(active));
      try { history.replaceState(null, "", "#node=" + id); } catch (error) { /* a file opened from disk */ }
    } catch (error) {
      xm.replace(facts, h("p.problem", {role: "alert"}, error.message));
    }
  };
  const ancestors = async (id) => {
    for (let above = nodes.get(id).parent; above !== null; above = nodes.get(above).parent) if (!nodes.has(above)) await load(above, 0);
  };

  box.addEventListener("keydown", (event) => {
    const node = nodes.get(active);
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    const sibling = (step) => {
      const own = cells.get(active);
      const level = [...cells.entries()].filter(([, cell]) => cell.style.top === own.style.top)
        .sort((a, b) => parseFloat(a[1].style.left) - parseFloat(b[1].style.left)).map(([id]) => id);
      return level[level.indexOf(active) + step];
    };
    let next;
    if (event.key === "ArrowDown") next = (below.get(active) || []).find((id) => cells.has(id));
    else if (event.key === "ArrowUp") next = active === focus ? undefined : node.parent;
    else if (event.key === "ArrowRight") next = sibling(1);
    else if (event.key === "ArrowLeft") next = sibling(-1);
    else if (event.key === "Home") { event.preventDefault(); go(0, true); return; }
    else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); go(active, true); return; }
    else if (event.key === "Backspace" || event.key === "Escape") {
      const above = nodes.get(focus).parent;
      if (above !== null) { event.preventDefault(); go(above, true); }
      return;
    } else return;
    event.preventDefault();
    if (next !== undefined && cells.has(next)) cells.get(next).focus();
  });

  // ---- search ----

  const finder = () => {
    const list = h("ul", {role: "listbox", id: "hits", "aria-label": "Labels", hidden: true});
    const field = h("input", {type: "search", id: "find", role: "combobox", "aria-expanded": "false", "aria-controls": "hits", "aria-autocomplete": "list",
      autocomplete: "off", spellcheck: "false", placeholder: "Search for a label"});
    let hits = [];
    let chosen = -1;
    let asked = 0;
    let timer = null;
    const close = () => { list.hidden = true; field.setAttribute("aria-expanded", "false"); field.removeAttribute("aria-activedescendant"); };
    const mark = (i) => {
      chosen = i;
      [...list.children].forEach((item, j) => item.setAttribute("aria-selected", String(j === i)));
      if (i >= 0) { field.setAttribute("aria-activedescendant", "hit" + i); list.children[i].scrollIntoView({block: "nearest"}); }
    };
    const open = (hit) => { close(); found = hit.node; field.value = hit.label; go(hit.node, false).then(() => box.scrollIntoView({block: "nearest"})); };
    const look = async () => {
      const number = ++asked;
      const text = field.value.trim();
      if (!text) { close(); return; }
      const answer = await source.search(text, 12).catch((error) => ({labels: [], total: 0, problem: error.message}));
      if (number !== asked) return;
      hits = answer.labels;
      xm.replace(list, hits.length ? hits.map((hit, i) => h("li", {role: "option", id: "hit" + i, "aria-selected": "false", onmousedown: (event) => { event.preventDefault(); open(hit); }},
        h("span.label", null, hit.label), " ", h("span.desc", null, hit.description || ""))) : [h("li.quiet", null, answer.problem || source.nothing || "No label with this text.")]);
      list.hidden = false;
      field.setAttribute("aria-expanded", "true");
      mark(hits.length ? 0 : -1);
    };
    field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(look, 120); });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !list.hidden && hits[chosen]) { event.preventDefault(); open(hits[chosen]); }
      else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && hits.length) {
        event.preventDefault();
        mark((chosen + (event.key === "ArrowDown" ? 1 : -1) + hits.length) % hits.length);
      }
    });
    field.addEventListener("blur", close);
    return h("div.finder", null, h("label.visually-hidden", {for: "find"}, "Search for a label"), field, list);
  };

  const legend = () => {
    if (!about.has_accuracy) return h("div.legend", null, "Without held-out rows there are no colours; extremax report makes them.");
    const steps = Array.from({length: 11}, (_, i) => { const step = h("i"); step.style.backgroundColor = xm.colour(i / 10); return step; });
    return h("div.legend", {role: "img", "aria-label": "Colour is held-out accuracy, from pale yellow for 0% to dark blue for 100%; hatched without held-out rows"},
      "Held-out accuracy 0%", h("span.scale", null, steps), "100%", h("span.none"), "no rows");
  };

  const from = () => { const at = /#node=(\d+)/.exec(location.hash); return at ? Number(at[1]) : 0; };
  let frame = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(() => { if (nodes.has(focus)) draw(); }); });
  window.addEventListener("hashchange", () => go(from()));

  const start = async () => {
    await load(0, levels() - 1);
    draw();
    if (from()) await go(from());
  };
  const card = h("section.card", {"aria-label": "Label tree"}, h("h2", null, "Label tree"),
    h("p.note", null, "Each cell is a group of classes that " + (about.source === "label tree" ? "the label tree of the model holds together"
      : "have similar weights") + ", named by words that its labels share, or else by its largest labels. Its width is the number of " + (about.width || "rows")
      + ". Click, or press Enter, to go down; arrow keys move, Backspace goes up."),
    h("div.tools", null, finder(), legend()), crumbs, box, facts, status);
  return {card, start};
};
