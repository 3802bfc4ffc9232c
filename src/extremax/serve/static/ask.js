// The first page: type a text and see its labels and the words that made them; paste a column and get a table.
"use strict";

(() => {
  const {h} = xm;
  const DELAY = 120; // milliseconds without a key before the text is sent
  const SHOWN = 5;
  let info = null;

  // ---- one text ----

  const ask = () => {
    const field = h("textarea", {id: "text", rows: "2", spellcheck: "false", autocomplete: "off",
      placeholder: info.input === "texts" ? "Type a text" : "Type the numbers of one row, separated by commas"});
    const answers = h("div", {"aria-live": "polite", id: "answers"});
    const reasons = h("div", {id: "reasons"});
    let asked = 0; // number of the last request; answers to earlier ones are dropped
    let pending = null;
    let timer = null;

    const send = async () => {
      const number = ++asked;
      if (pending) pending.abort();
      const text = field.value;
      if (!text.trim()) {
        xm.replace(answers); xm.replace(reasons);
        return;
      }
      pending = new AbortController();
      try {
        const inputs = read(text);
        const body = {inputs, parameters: {top_k: SHOWN}};
        const found = info.explains
          ? await xm.request("explain", body, pending.signal)
          : {labels: await xm.request("predict", body, pending.signal), is_known: true};
        if (number === asked) show(found, text, answers, reasons);
      } catch (error) {
        if (error.name !== "AbortError" && number === asked) {
          xm.replace(answers, h("p.problem", {role: "alert"}, error.message));
          xm.replace(reasons);
        }
      }
    };
    const soon = () => { clearTimeout(timer); timer = setTimeout(send, DELAY); };
    field.addEventListener("input", soon);
    const examples = info.input === "texts" ? h("div.examples", {"aria-label": "Examples"},
      (info.examples || []).map((text) => h("button", {type: "button", onclick: () => { field.value = text; send(); field.focus(); }}, text))) : null;
    return [
      h("section.card.ask", {"aria-label": "One text"}, h("label", {for: "text"}, info.input === "texts" ? "Text" : "Features"), field, examples,
        h("div.spaced", null, answers)),
      reasons,
    ];
  };

  // A text, or for a model of vectors the numbers in it.
  const read = (text) => {
    if (info.input === "texts") return text;
    const values = text.split(/[\s,;[\]]+/).filter(Boolean).map(Number);
    if (values.some((value) => !Number.isFinite(value))) throw new Error("A row is numbers, separated by commas or spaces.");
    return values;
  };

  const show = (found, text, answers, reasons) => {
    const unknown = !found.is_known || found.labels.some((answer) => answer.known === false);
    xm.replace(answers,
      unknown ? h("p.note", null, "No word of this text is known to the model: these are the most frequent classes.") : null,
      h("ul.answers", {"aria-label": "Labels, the most probable first"}, found.labels.map((answer, i) => h("li", null,
        h("span.label", null, answer.label),
        h("span.what", null, answer.description || ""),
        h("span.value", null, xm.percent(answer.score)),
        xm.bar(answer.score, i === 0 ? "" : i === 1 ? "second" : "other"),
      ))));
    xm.replace(reasons, unknown || !found.score ? null : why(found, text), found.path ? place(found.path) : null);
  };

  // ---- reasons ----

  let choice = "difference"; // what was looked at last stays

  const why = (found, text) => {
    const marked = h("p.marked");
    const terms = h("div.two");
    const second = found.against && found.against[0];
    const sentence = h("p.note");
    const options = [["difference", "First against second"], ["score", "First label alone"]].filter(([name]) => name === "score" || second);
    if (!second) choice = "score";
    const buttons = options.map(([name, title]) => h("button", {type: "button", role: "radio", onclick: () => draw(name), onkeydown: (event) => {
      const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
      if (!step) return;
      event.preventDefault();
      const at = (buttons.indexOf(event.currentTarget) + step + buttons.length) % buttons.length;
      draw(options[at][0]);
      buttons[at].focus();
    }}, title));
    const draw = (name) => {
      choice = name;
      options.forEach(([option], i) => {
        buttons[i].setAttribute("aria-checked", String(option === name));
        buttons[i].tabIndex = option === name ? 0 : -1;
      });
      const part = name === "difference" ? second : found.score;
      const words = part.words.length ? part.words : part.terms;
      xm.replace(sentence, name === "difference"
        ? h("span", null, "Blue words speak for ", h("span.label", null, part.label), ", orange ones for ", h("span.label", null, part.rather_than),
          "; all contributions add up to the difference of the scores, " + signed(part.total) + ".")
        : h("span", null, "Blue words raise the score of ", h("span.label", null, part.label), ", orange ones lower it; all contributions add up to "
          + signed(part.total) + "."));
      highlight(marked, text, part.words);
      const inside = part.terms.filter(([term]) => !isWhole(term));
      xm.replace(terms,
        h("div", null, h("h3", null, part.words.length ? "By word" : "By feature"), leaning(words)),
        part.words.length ? h("div", null, h("h3", null, "Strongest n-grams"), leaning(inside)) : null);
    };
    const card = h("section.card", {"aria-label": "Why"}, h("h2", null, "Why"),
      h("div.tabs", {role: "radiogroup", "aria-label": "Contributions to"}, buttons), sentence, marked, terms);
    draw(choice);
    return card;
  };

  const isWhole = (term) => term.startsWith("(") && term.endsWith(")");
  const signed = (value) => (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(2);

  // The text with its words coloured; words are runs of letters and digits, as the server divides them.
  const highlight = (node, text, words) => {
    const values = new Map(words);
    const most = Math.max(1e-9, ...words.filter(([word]) => !isWhole(word)).map(([, value]) => Math.abs(value)));
    const pieces = text.split(/([\p{L}\p{N}_]+)/u).map((piece) => {
      const value = values.get(piece.toLowerCase());
      if (value === undefined || !piece.trim()) return document.createTextNode(piece);
      const mark = h("mark", {title: signed(value)}, piece);
      const strength = Math.min(1, Math.abs(value) / most);
      mark.style.backgroundColor = "rgba(var(" + (value >= 0 ? "--for" : "--against") + "), " + (0.06 + 0.5 * strength).toFixed(2) + ")";
      return mark;
    });
    xm.replace(node, pieces);
  };

  const leaning = (terms) => {
    const shown = terms.slice(0, 8);
    const others = terms.slice(8);
    const rows = shown.concat(others.length ? [[others.length + " others", others.reduce((sum, [, value]) => sum + value, 0)]] : []);
    const most = Math.max(1e-9, ...rows.map(([, value]) => Math.abs(value)));
    return h("table.terms", null, h("tbody", null, rows.map(([term, value]) => {
      const bar = h("span", {class: value >= 0 ? "plus" : "minus"});
      bar.style.width = (50 * Math.abs(value) / most).toFixed(1) + "%";
      return h("tr", null, h("th", {scope: "row"}, term), h("td", null, h("span.lean", {"aria-hidden": "true"}, bar)), h("td", null, signed(value)));
    })));
  };

  const place = (path) => h("section.card", {"aria-label": "Place in the label tree"}, h("h2", null, "Place in the label tree"),
    h("p.note", null, "Classes that the model finds alike stand together; each step divides them."),
    h("ol.path", null, path.map((node, i) => h("li", null, h("a", {
      href: report ? null : xm.link("model") + "#node=" + node.id, "aria-current": i === path.length - 1 ? "true" : null,
      title: xm.plural(node.n_classes, "class", "classes"),
    }, node.name)))));

  // ---- many texts ----

  const many = () => {
    const field = h("textarea", {id: "texts", rows: "8", spellcheck: "false", placeholder: "Paste a column: one text per line"});
    const table = h("div", {id: "table"});
    const status = h("span.note", {role: "status"});
    let rows = [];
    const save = h("button", {type: "button", disabled: true, onclick: () => download("labels.csv", csv(rows))}, "Download CSV");
    const start = h("button.main", {type: "button", onclick: async () => {
      const texts = field.value.split(/\r?\n/).filter((line) => line.trim());
      if (!texts.length) { status.textContent = "Paste at least one text."; return; }
      start.disabled = save.disabled = true;
      rows = [];
      try {
        const size = Math.max(1, Math.min(256, (info.limits && info.limits.texts) || 64));
        for (let first = 0; first < texts.length; first += size) {
          status.textContent = xm.count(first) + " of " + xm.plural(texts.length, "text");
          const part = texts.slice(first, first + size);
          const found = await xm.request("predict", {inputs: part.map(read), parameters: {top_k: 2}});
          part.forEach((text, i) => rows.push({text, first: found[i][0], second: found[i][1]}));
        }
        status.textContent = xm.plural(rows.length, "text") + " classified.";
      } catch (error) {
        status.textContent = error.message + (rows.length ? " The first " + xm.plural(rows.length, "text") + " are below." : "");
      }
      start.disabled = false;
      save.disabled = !rows.length;
      xm.replace(table, rows.length ? drawn(rows) : null);
    }}, "Classify");
    return [h("section.card", {"aria-label": "Many texts"}, h("label", {for: "texts"}, "Texts"), field, h("div.row", null, start, save, status)), table];
  };

  const drawn = (rows) => {
    const most = 200;
    const cell = (answer) => (answer ? [h("span.label", null, answer.label), " ", h("span.desc", null, answer.description || "")] : "");
    return h("section.card", {"aria-label": "Labels of the texts"}, xm.scroll(h("table.list", null,
      h("thead", null, h("tr", null, ["Text", "Label", "Probability", "Second label"].map((name, i) => h("th", {scope: "col", class: i === 2 ? "n" : null}, name)))),
      h("tbody", null, rows.slice(0, most).map((row) => h("tr", null, h("td.wide", null, row.text), h("td.wide", null, cell(row.first)),
        h("td.n", null, xm.percent(row.first.score)), h("td.wide", null, cell(row.second)))))),
    ), rows.length > most ? h("p.note", null, "The first " + most + " are shown; the file has all " + xm.count(rows.length) + ".") : null);
  };

  // A cell that a spreadsheet would take for a formula gets an apostrophe; all are quoted.
  const quoted = (value) => {
    const text = value === undefined || value === null ? "" : String(value);
    const risky = /^[\s]*[=+\-@\t\r]/.test(text) && !/^-?\d+(\.\d+)?(e-?\d+)?$/i.test(text);
    return '"' + (risky ? "'" + text : text).replace(/"/g, '""') + '"';
  };
  const csv = (rows) => {
    const lines = [["text", "label", "description", "probability", "second_label", "second_probability"]].concat(rows.map((row) => [
      row.text, row.first.label, row.first.description, row.first.score, row.second && row.second.label, row.second && row.second.score]));
    return "\ufeff" + lines.map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
  };
  const download = (name, content) => {
    const link = h("a", {href: URL.createObjectURL(new Blob([content], {type: "text/csv;charset=utf-8"})), download: name});
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  // ---- page ----

  const tabs = () => {
    const panels = [["One text", ask()], ["Many texts", many()]].map(([name, content], i) => {
      const panel = h("div", {role: "tabpanel", id: "panel" + i, "aria-labelledby": "tab" + i}, content);
      const tab = h("button", {type: "button", role: "tab", id: "tab" + i, "aria-controls": "panel" + i, onclick: () => choose(i), onkeydown: (event) => {
        const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
        if (step) { choose((i + step + 2) % 2); panels[(i + step + 2) % 2].tab.focus(); }
      }}, name);
      return {tab, panel};
    });
    const choose = (chosen) => panels.forEach(({tab, panel}, i) => {
      tab.setAttribute("aria-selected", String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
      panel.hidden = i !== chosen;
    });
    choose(0);
    return [h("div.tabs", {role: "tablist", "aria-label": "What to classify"}, panels.map(({tab}) => tab)), ...panels.map(({panel}) => panel)];
  };

  const headline = () => [h("h1", null, "Ask the model"), h("p.quiet", null, xm.plural(info.n_classes, "class", "classes")
    + (info.n_samples ? ", trained on " + xm.plural(info.n_samples, "row") : ""))];

  // One answer that stands in the page itself, without a server.
  const still = ({text, found}) => {
    const answers = h("div");
    const reasons = h("div");
    show(found, text, answers, reasons);
    return [headline(), h("section.card.ask", {"aria-label": "One text"}, h("label", {for: "text"}, "Text"),
      h("textarea", {id: "text", rows: "2", readonly: true}, text), answers), reasons];
  };

  const report = document.getElementById("report");
  if (report) {
    const data = JSON.parse(report.textContent);
    info = data.info;
    xm.replace(document.getElementById("app"), still(data));
  } else {
    xm.header("Ask", null);
    xm.withKey(async () => {
      info = await xm.request("info");
      xm.header("Ask", info);
      document.title = info.name + " – extremax";
      xm.replace(document.getElementById("app"), headline(), tabs());
      document.getElementById("text").focus();
    });
  }
})();
