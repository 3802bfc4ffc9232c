// The model page: figures, the label tree, accuracy by class frequency, reliability, confusions, classes to merge, doubtful labels.
// In a report the data stand in the element #report; otherwise the server is asked.
"use strict";

(() => {
  const {h} = xm;

  // ---- where the data come from ----

  const server = {
    overview: () => xm.request("analysis"),
    tree: (node, depth) => xm.request("tree?node=" + node + "&depth=" + Math.max(1, depth)),
    search: (text, limit) => xm.request("tree?search=" + encodeURIComponent(text) + "&limit=" + limit),
  };

  const embedded = (data) => {
    const nodes = new Map(data.nodes.map((node) => [node.id, node]));
    const below = new Map();
    for (const node of data.nodes) if (node.parent !== null) below.set(node.parent, (below.get(node.parent) || []).concat(node.id));
    const classes = data.nodes.filter((node) => node.is_leaf);
    return {
      nothing: classes.length < data.overview.model.n_classes ? "No label with this text among the " + xm.count(classes.length) + " in this file." : "No label with this text.",
      overview: async () => data.overview,
      tree: async (id, depth) => {
        const found = [];
        let level = [id];
        for (let i = 0; i <= depth && level.length; i++) {
          found.push(...level.map((number) => nodes.get(number)));
          level = level.flatMap((number) => below.get(number) || []);
        }
        if (!nodes.has(id)) throw new Error("This part of the tree is not in this file.");
        return {root: nodes.get(id), nodes: found, truncated: false};
      },
      search: async (text, limit) => {
        const query = text.toLowerCase();
        const hits = classes.filter((node) => node.label.toLowerCase().includes(query) || (node.description || "").toLowerCase().includes(query));
        const rank = (node) => { const name = node.label.toLowerCase(); return name === query ? 0 : name.startsWith(query) ? 1 : name.includes(query) ? 2
          : (" " + node.description.toLowerCase()).includes(" " + query) ? 3 : 4; };
        hits.sort((a, b) => rank(a) - rank(b) || b.n_rows - a.n_rows);
        return {labels: hits.slice(0, limit).map((node) => ({...node, node: node.id})), total: hits.length};
      },
    };
  };

  // ---- parts ----

  const titled = (name, description) => [h("span.label", null, name), description ? [" ", h("span.desc", null, description)] : ""];
  const th = (names, numeric, roomy) => h("thead", null, h("tr", null, names.map((name, i) => h("th", {scope: "col",
    class: [numeric.includes(i) ? "n" : "", (roomy || []).includes(i) ? "roomy" : ""].join(" ")}, name))));
  const section = (name, note, ...content) => h("section.card", {"aria-label": name}, h("h2", null, name), note ? h("p.note", null, note) : null, content);

  // A table whose rows are shown a few at a time; on a telephone each becomes a block with the names of its columns.
  // Roles are stated because a block layout takes them away.
  const some = (names, numeric, rows, make) => {
    const step = 10;
    const body = h("tbody", {role: "rowgroup"});
    const head = h("thead", {role: "rowgroup"}, h("tr", {role: "row"}, names.map((name, i) => h("th", {role: "columnheader", scope: "col", class: numeric.includes(i) ? "n" : null}, name))));
    const holder = h("div", null, xm.scroll(h("table.list.stack", {role: "table"}, head, body)));
    const line = (row) => h("tr", {role: "row"}, make(row).map((content, i) => h("td", {role: "cell", class: numeric.includes(i) ? "n" : "wide", "data-name": names[i]}, h("span", null, content))));
    let n = 0;
    const more = h("button", {type: "button", onclick: () => add()});
    const add = () => {
      body.append(...rows.slice(n, n + step).map(line));
      n = Math.min(rows.length, n + step);
      more.textContent = "Show " + Math.min(step, rows.length - n) + " more of " + (rows.length - n);
      if (n >= rows.length) more.remove();
      else if (!more.isConnected) holder.append(h("div.row", null, more));
    };
    add();
    return holder;
  };

  const tiles = (figures) => {
    const [model, other] = figures;
    const top = Object.keys(model).find((name) => /^top\d+_accuracy$/.test(name));
    const tile = (name, key, format) => h("div.tile", null, h("div.name", null, name), h("div.value", null, format(model[key])),
      other ? h("div.other", null, "class frequencies " + format(other[key])) : null);
    return h("div.tiles", null, tile("Accuracy", "accuracy", (v) => xm.percent(v)), tile("Among the first " + top.match(/\d+/)[0], top, (v) => xm.percent(v)),
      tile("Log-likelihood", "log_likelihood", (v) => xm.number(v, 3)), tile("Calibration error", "calibration_error", (v) => xm.percent(v)));
  };

  const deciles = ({note, rows}) => {
    const top = Object.keys(rows[0] || {}).find((name) => /^top\d+_accuracy$/.test(name)) || "top5_accuracy";
    const whisker = (row) => {
      const fill = h("span.fill");
      fill.style.width = 100 * row.accuracy + "%";
      fill.style.backgroundColor = xm.colour(row.accuracy);
      const range = h("span.range");
      range.style.left = 100 * row.accuracy_low + "%";
      range.style.width = 100 * (row.accuracy_high - row.accuracy_low) + "%";
      return h("span.whisker", {"aria-hidden": "true"}, fill, range);
    };
    return section("Accuracy by class frequency", note, xm.scroll(h("table.list", null,
      th(["Rows of a class", "Classes", "Held-out rows", "Accuracy", "", "First " + top.match(/\d+/)[0], "Log-lik."], [1, 2, 4, 5, 6], [2, 6]),
      h("tbody", null, rows.map((row) => h("tr", null,
        h("td.whole", null, row.least_rows === row.most_rows ? xm.count(row.most_rows) : xm.count(row.least_rows) + "–" + xm.count(row.most_rows)),
        h("td.n", null, xm.count(row.n_classes)), h("td.n.roomy", null, xm.count(row.n_held_out)),
        h("td", null, row.accuracy === null ? "" : whisker(row)), h("td.n", null, xm.percent(row.accuracy)), h("td.n", null, xm.percent(row[top])),
        h("td.n.roomy", null, xm.number(row.log_likelihood))))))));
  };

  const reliability = ({note, rows}) => {
    const [left, top, size, low] = [38, 10, 300, 46];
    const x = (p) => left + size * p;
    const y = (p) => top + size * (1 - p);
    const filled = rows.filter((row) => row.n > 0);
    const most = Math.max(1, ...filled.map((row) => row.n));
    const ticks = [0, 0.25, 0.5, 0.75, 1];
    const base = top + size + 22;
    const chart = h("svg.chart", {viewBox: "0 0 360 " + (base + low + 26), role: "img", "aria-label": "Reliability diagram: share right against probability; the table below has the numbers"},
      ticks.map((t) => [h("line.axis", {x1: x(0), x2: x(1), y1: y(t), y2: y(t)}), h("line.axis", {x1: x(t), x2: x(t), y1: y(0), y2: y(1)}),
        h("text", {x: x(t), y: y(0) + 14, "text-anchor": "middle"}, 100 * t), h("text", {x: x(0) - 6, y: y(t) + 4, "text-anchor": "end"}, 100 * t)]),
      h("line.even", {x1: x(0), y1: y(0), x2: x(1), y2: y(1)}),
      h("path.joined", {d: filled.map((row, i) => (i ? "L" : "M") + x(row.probability).toFixed(1) + " " + y(row.accuracy).toFixed(1)).join("")}),
      filled.map((row) => h("g", null, h("line.between", {x1: x(row.probability), x2: x(row.probability), y1: y(row.accuracy_low), y2: y(row.accuracy_high)}),
        h("circle.point", {cx: x(row.probability), cy: y(row.accuracy), r: (2.5 + 3.5 * Math.sqrt(row.n / most)).toFixed(2)},
          h("title", null, "probability " + xm.percent(row.probability) + ", right " + xm.percent(row.accuracy) + ", " + xm.plural(row.n, "prediction"))))),
      filled.map((row) => h("rect.amount", {x: x(row.from) + 1, width: size * (row.to - row.from) - 2, y: base + low * (1 - row.n / most), height: (low * row.n / most).toFixed(2)})),
      h("text", {x: x(0.5), y: base + low + 16, "text-anchor": "middle"}, "probability of the first label, %; below: how many"),
      h("text", {x: 10, y: y(0.5), "text-anchor": "middle", transform: "rotate(-90 10 " + y(0.5) + ")"}, "share right, %"));
    return section("Reliability", note, chart, h("details", null, h("summary", null, "Numbers"), xm.scroll(h("table.list", null,
      th(["Probability", "Predictions", "Mean probability", "Share right"], [1, 2, 3]), h("tbody", null, filled.map((row) => h("tr", null,
        h("td", null, xm.percent(row.from, 0) + " to " + xm.percent(row.to, 0)), h("td.n", null, xm.count(row.n)), h("td.n", null, xm.percent(row.probability)),
        h("td.n", null, xm.percent(row.accuracy)))))))));
  };

  const first = (n, rows) => (n > rows.length ? " The first " + rows.length + " of " + xm.count(n) + "." : "");
  const none = () => h("p", null, "None.");
  const shown = (row) => (row.text === undefined ? "row " + xm.count(row.row) : row.text);

  const confusions = ({note, n, rows}) => section("Most confused pairs", note + first(n, rows), rows.length ? some(
    ["Label", "Predicted", "Rows", "Share", "Reverse", "Examples"], [2, 3, 4], rows, (row) => [
      titled(row.label, row.label_description), titled(row.predicted, row.predicted_description), xm.count(row.n) + " of " + xm.count(row.n_label),
      xm.percent(row.share, 0), xm.count(row.n_reverse), row.examples.length ? h("details", null, h("summary", null, xm.plural(row.examples.length, "example")),
        h("ul.texts", null, row.examples.map((example) => h("li", null, shown(example), " ",
          h("span.quiet", null, "(" + xm.percent(example.predicted_probability) + " against " + xm.percent(example.probability) + ")"))))) : "",
    ]) : none());

  const merge = ({note, rows}) => section("Classes to merge", note, rows.length ? some(
    ["Class", "Other class", "Predicted as other", "Other as it", "Confused", "Pairs by chance"], [2, 3, 4, 5], rows, (row) => [
      titled(row.label, row.label_description), titled(row.other, row.other_description), xm.count(row.n_to_other) + " of " + xm.count(row.n_label),
      xm.count(row.n_from_other) + " of " + xm.count(row.n_other), xm.percent(row.share_confused, 0),
      row.pairs_by_chance < 1e-4 ? row.pairs_by_chance.toExponential(0) : xm.number(row.pairs_by_chance, 4),
    ]) : none());

  const suspects = ({note, n, rows}) => section("Rows to check", note + first(n, rows), rows.length ? some(
    ["Row", "Given label", "Probability", "Rather", "Probability"], [2, 4], rows, (row) => [
      shown(row), titled(row.label, row.label_description), xm.percent(row.probability), titled(row.predicted, row.predicted_description),
      xm.percent(row.predicted_probability),
    ]) : none());

  // ---- page ----

  const draw = async (source, name) => {
    const found = await source.overview();
    const {model, held_out: held, tables} = found;
    const tree = xm.icicle(source, found.tree);
    const facts = [xm.plural(model.n_classes, "class", "classes"), model.n_samples ? xm.plural(model.n_samples, "training row") : null,
      held ? "measured on " + xm.plural(held.n_rows, "held-out row") : null,
      held && held.n_left_out ? xm.plural(held.n_left_out, "row") + " without a known label left out" : null].filter(Boolean).join(", ") + ".";
    xm.replace(document.getElementById("app"), h("h1", null, name), h("p.quiet", null, facts),
      held ? tiles(tables.figures.rows) : h("p.card", null, "There are no held-out figures. Make them with ", h("code", null, "extremax report MODEL DATA --out analysis.json"),
        " and start the server with ", h("code", null, "--analysis analysis.json"), "."),
      tree.card, held ? [h("div.two.uneven", null, h("div", null, deciles(tables.deciles)), h("div", null, reliability(tables.reliability))),
        confusions(tables.confusions), merge(tables.merge), suspects(tables.suspects)].flat() : []);
    await tree.start();
  };

  const report = document.getElementById("report");
  if (report) {
    const data = JSON.parse(report.textContent);
    draw(embedded(data), data.title);
  } else {
    xm.header("Model", null);
    xm.withKey(async () => {
      const info = await xm.request("info");
      xm.header("Model", info);
      document.title = info.name + ": the model – extremax";
      await draw(server, info.name);
    });
  }
})();
