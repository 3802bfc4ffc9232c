// The first page: type a text and see its labels and the words that made them; paste a column and get a table.
"use strict";

(() => {
  const {h} = xm;
  const DELAY = 120; // milliseconds without a key before the text is sent
  const SHOWN = 5;
  const LONGEST_LINK = 1000; // characters of a text in the address
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
        address(text);
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
    // The address of the page is a link to this answer.
    const address = (text) => {
      const query = new URLSearchParams(location.search);
      query.set("q", text);
      if (text.length <= LONGEST_LINK) history.replaceState(null, "", "?" + query);
    };
    const soon = () => { clearTimeout(timer); timer = setTimeout(send, DELAY); };
    field.addEventListener("input", soon);
    const examples = info.input === "texts" ? h("div.examples", {"aria-label": "Examples"},
      (info.examples || []).map((text) => h("button", {type: "button", onclick: () => { field.value = text; send(); field.focus(); }}, text))) : null;
    const linked = new URLSearchParams(location.search).get("q");
    if (linked) { field.value = linked; send(); }
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
    const nothing = !found.is_known || found.labels.some((answer) => answer.known === false);
    xm.replace(answers,
      nothing ? h("p.note", null, "No word of this text is known to the model: these are the most frequent classes.") : null,
      h("ul.answers", {"aria-label": "Labels, the most probable first"}, found.labels.map((answer, i) => h("li", null,
        answer.description ? [h("span.what", null, answer.description), h("span.label.code", null, answer.label)]
          : [h("span.label", null, answer.label), h("span")],
        h("span.value", null, xm.percent(answer.score)),
        xm.bar(answer.score, i === 0 ? "" : i === 1 ? "second" : "other"),
      ))),
      info.several_labels ? h("p.note", null, "Each label has a probability of its own: several may apply, and they need not add up.") : null);
    xm.replace(reasons, nothing || !found.score ? null : why(found, text), found.path ? place(found.path) : null);
  };

  // ---- reasons ----

  // What stands for terms that are no words.
  const PLAIN = {
    "(class bias)": "how common the class is", "(log of the class frequency)": "how common the class is",
    "(length of the row)": "length of the text", "(embedding)": "the text as a whole",
    "(log p of the noise)": "how common the class is for such texts", "(classes merged into one)": "several classes in one",
  };
  const isWhole = (term) => term.startsWith("(") && term.endsWith(")");
  const signed = (value) => (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(2);
  const titled = (answer) => h("span", {class: answer.description ? "title" : "label", title: answer.label}, answer.description || answer.label);

  // What adds to the score of answer i, or to its difference from that of answer j: the server sends the score of the first answer, and
  // how far it is ahead of each of the others.
  const contributions = (found, i, j) => {
    const parts = j === null ? [[found.score, 1]] : j ? [[found.against[j - 1], 1]] : [];
    if (i) parts.push([found.against[i - 1], -1]);
    const sum = (field) => {
      const values = new Map();
      parts.forEach(([part, sign]) => part[field].forEach(([name, value]) => values.set(name, (values.get(name) || 0) + sign * value)));
      return [...values].filter(([, value]) => Math.abs(value) > 1e-9).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    };
    return {words: sum("words"), terms: sum("terms"), total: parts.reduce((total, [part, sign]) => total + sign * part.total, 0)};
  };

  const why = (found, text) => {
    const answers = found.labels.slice(0, 1 + (found.against || []).length);
    const marked = h("p.marked");
    const terms = h("div.two");
    const sentence = h("p.note");
    const remarks = h("div");
    const select = (label, first, chosen) => {
      const node = h("select", {"aria-label": label, onchange: () => draw()}, first ? h("option", {value: ""}, first) : null,
        answers.map((answer, i) => h("option", {value: String(i)}, answer.label + (answer.description ? " – " + answer.description : ""))));
      node.value = chosen;
      return node;
    };
    const one = select("Why", null, "0");
    const other = select("Rather than", "no other: its score alone", answers.length > 1 ? "1" : "");
    const draw = () => {
      const i = Number(one.value);
      const j = other.value === "" || other.value === one.value ? null : Number(other.value);
      [...other.options].forEach((option) => { option.disabled = option.value === one.value; });
      if (j === null) other.value = "";
      const part = contributions(found, i, j);
      xm.replace(sentence, j === null
        ? h("span", null, "Blue words raise the score of ", titled(answers[i]), ", orange ones lower it; all contributions add up to "
          + signed(part.total) + ".")
        : h("span", null, "Blue words speak for ", titled(answers[i]), ", orange ones for ", titled(answers[j]),
          "; all contributions add up to the difference of the scores, " + signed(part.total) + "."));
      highlight(marked, found.pieces || [text], part.words, found.unknown_words || []);
      xm.replace(remarks, unknown(found.unknown_words), [i, j].filter((k) => k !== null).map((k) => unmatched(found, k, answers[k])));
      const inside = part.terms.filter(([term]) => !isWhole(term));
      const hasWords = part.words.length > 0;
      xm.replace(terms,
        h("div", null, h("h3", null, hasWords ? "By word" : "By feature"), leaning(hasWords ? part.words : part.terms, hasWords ? "word" : "feature")),
        hasWords ? h("div", null, h("h3", null, "Strongest parts of words and pairs"), leaning(inside, "part")) : null);
    };
    const card = h("section.card", {"aria-label": "Why"}, h("h2", null, "Why"),
      h("div.row", null, one, h("span", null, "rather than"), other), sentence, marked, remarks, terms);
    draw();
    return card;
  };

  const listed = (words) => words.map((word, i) => [i ? ", " : "", h("em", null, word)]);
  const unknown = (words) => (words && words.length ? h("p.note", null, "No training text has ", listed(words), ".") : null);
  const unmatched = (found, i, answer) => {
    const words = (found.unmatched_words || [])[i];
    return words && words.length ? h("p.note", null, "Not matched by ", titled(answer), ": ", listed(words), ".") : null;
  };

  // The text with its words coloured, cut as the server does.
  const highlight = (node, pieces, words, unknownWords) => {
    const values = new Map(words);
    const strange = new Set(unknownWords);
    const most = Math.max(1e-9, ...words.filter(([word]) => !isWhole(word)).map(([, value]) => Math.abs(value)));
    xm.replace(node, pieces.map((piece) => {
      const word = piece.toLowerCase();
      const value = values.get(word);
      if (value === undefined && !strange.has(word)) return document.createTextNode(piece);
      const mark = h(strange.has(word) ? "mark.unknown" : "mark", {title: (strange.has(word) ? "unknown word " : "") + signed(value || 0)}, piece);
      const strength = Math.min(1, Math.abs(value || 0) / most);
      mark.style.backgroundColor = "rgba(var(" + (value >= 0 ? "--for" : "--against") + "), " + (value ? 0.06 + 0.5 * strength : 0).toFixed(2) + ")";
      return mark;
    }));
  };

  const leaning = (terms, kind) => {
    const shown = terms.slice(0, 8);
    const others = terms.slice(8);
    const rows = shown.concat(others.length ? [[xm.plural(others.length, "other " + kind) + " together", others.reduce((sum, [, value]) => sum + value, 0)]] : []);
    const most = Math.max(1e-9, ...rows.map(([, value]) => Math.abs(value)));
    return h("table.terms", null, h("tbody", null, rows.map(([term, value]) => {
      const bar = h("span", {class: value >= 0 ? "plus" : "minus"});
      bar.style.width = (50 * Math.abs(value) / most).toFixed(1) + "%";
      return h("tr", null, h("th", {scope: "row"}, PLAIN[term] || term), h("td", null, h("span.lean", {"aria-hidden": "true"}, bar)), h("td", null, signed(value)));
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
