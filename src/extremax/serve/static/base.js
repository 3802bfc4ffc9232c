// Shared by both pages and by reports: elements, numbers, colours, and requests to the server.
// Texts of users enter the document through textContent and attributes only, never as markup.
"use strict";

const xm = {};

// ---- elements ----

// xm.h("a.name", {href: "..."}, child, ...): strings become text, null and false nothing.
xm.h = (kind, attributes, ...children) => {
  const [tag, ...classes] = kind.split(".");
  const svg = xm.svgTags.has(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "hidden") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return node;
};
xm.svgTags = new Set(["svg", "g", "path", "line", "circle", "rect", "text", "title"]);
xm.replace = (node, ...children) => { node.replaceChildren(...children.flat(Infinity).filter(Boolean)); return node; };

// A bar of a share; the number stands beside it, so that it is hidden from readers of the screen.
xm.bar = (share, kind) => {
  const inner = xm.h("span.fill" + (kind ? "." + kind : ""));
  inner.style.width = (100 * Math.max(0, Math.min(1, share || 0))).toFixed(2) + "%";
  return xm.h("span.bar", {"aria-hidden": "true"}, inner);
};

xm.scroll = (table) => xm.h("div.scroll", {tabindex: "0", role: "region", "aria-label": "table"}, table);

// ---- numbers ----

xm.count = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en-US"));
xm.percent = (p, digits) => {
  if (p === null || p === undefined) return "–";
  const value = 100 * p;
  if (digits === undefined) digits = value >= 99.95 || value === 0 ? 0 : value >= 0.1 ? 1 : 2;
  return value > 0 && value < 0.01 ? "<0.01%" : value.toFixed(digits) + "%";
};
xm.number = (v, digits) => (v === null || v === undefined ? "–" : v.toFixed(digits === undefined ? 2 : digits).replace("-", "−"));
xm.plural = (n, one, many) => xm.count(n) + " " + (n === 1 ? one : many || one + "s");

// ---- colours: a sequential scale that stays in order without red and green, and in print ----

xm.stops = [[255, 247, 188], [217, 240, 178], [161, 218, 180], [94, 193, 192], [44, 148, 190], [34, 94, 168], [23, 52, 122]];
xm.rgb = (share) => {
  const x = Math.max(0, Math.min(1, share)) * (xm.stops.length - 1);
  const low = Math.min(xm.stops.length - 2, Math.floor(x));
  return xm.stops[low].map((v, i) => Math.round(v + (x - low) * (xm.stops[low + 1][i] - v)));
};
xm.colour = (share) => "rgb(" + xm.rgb(share).join(",") + ")";
// Black or white, whichever has the greater contrast (WCAG): at least 4.5 on every colour of the scale.
xm.inkOn = (share) => {
  const light = xm.rgb(share).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  return (light + 0.05) ** 2 > 0.05 * 1.05 ? "#000000" : "#ffffff";
};

// ---- requests ----

xm.model = new URLSearchParams(location.search).get("model");
xm.key = null; // an API key, kept by this page only

xm.api = (path) => (xm.model === null ? path : "models/" + encodeURIComponent(xm.model) + "/" + path);
xm.link = (path) => (xm.model === null ? path : path + "?model=" + encodeURIComponent(xm.model));

xm.request = async (path, body, signal) => {
  const headers = {Accept: "application/json"};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (xm.key) headers.Authorization = "Bearer " + xm.key;
  let answer;
  try {
    answer = await fetch(xm.api(path), {
      method: body === undefined ? "GET" : "POST",
      headers, signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer.");
  }
  let content = null;
  try { content = await answer.json(); } catch (error) { if (error.name === "AbortError") throw error; }
  if (!answer.ok) {
    const failure = new Error((content && content.error) || "The server answered with status " + answer.status + ".");
    failure.status = answer.status;
    throw failure;
  }
  return content;
};

// Ask for the API key until the server accepts it, then go on.
xm.withKey = async (start) => {
  const app = document.getElementById("app");
  try {
    await start();
  } catch (error) {
    if (error.status !== 401) {
      xm.replace(app, xm.h("p.problem", {role: "alert"}, error.message));
      return;
    }
    const field = xm.h("input", {type: "password", id: "key", autocomplete: "off", required: true});
    const form = xm.h("form.card.key", {onsubmit: (event) => {
      event.preventDefault();
      xm.key = field.value;
      xm.withKey(start);
    }}, xm.h("label", {for: "key"}, "This server wants an API key"), field, xm.h("button", {type: "submit"}, "Open"),
    xm.key ? xm.h("p.problem", {role: "alert"}, "The server did not accept that key.") : null);
    xm.replace(app, form);
    field.focus();
  }
};

xm.header = (page, info) => {
  const item = (name, path) => xm.h("a", {href: xm.link(path), "aria-current": name === page ? "page" : null}, name);
  const models = (info && info.models) || [];
  const chosen = xm.model || (info && info.name);
  const select = models.length < 2 ? null : xm.h("select", {
    "aria-label": "Model",
    onchange: (event) => { location.search = "?model=" + encodeURIComponent(event.target.value); },
  }, models.map((name) => xm.h("option", {value: name, selected: name === chosen}, name)));
  xm.replace(document.getElementById("top"),
    xm.h("a.brand", {href: xm.link("./")}, "extremax"),
    select || (info && info.name ? xm.h("span.which", null, info.name) : null),
    xm.h("nav", {"aria-label": "Pages"}, item("Ask", "./"), item("Model", "model")));
};
