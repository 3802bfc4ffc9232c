// The page at /docs: the OpenAPI document of the server, readable.
"use strict";

(() => {
  const h = xm.h;
  const name = (ref) => ref.split("/").pop();

  // A schema in a few words; those of named objects are links.
  const kind = (schema) => {
    if (!schema) return "text";
    if (schema.$ref) return h("a", {href: "#" + name(schema.$ref)}, name(schema.$ref));
    if (schema.anyOf) return schema.anyOf.flatMap((one, i) => [i ? " or " : null, kind(one)]);
    return schema.type === "array" && schema.items ? ["list of (", kind(schema.items), ")"] : schema.type || "anything";
  };
  const content = (part) => kind(part.content && part.content["application/json"] && part.content["application/json"].schema);

  const errors = (found) => found.length > 0 && h("p.quiet", null, "Errors: ", found.map(([status, answer], i) =>
    [i ? ", " : null, h("span", {title: answer.description}, status)]));

  const operation = (path, method, call) => h("section.card", null,
    h("h2", null, method.toUpperCase() + " ", h("code", null, path)),
    h("p", null, call.description || call.summary),
    call.parameters && xm.scroll(h("table.list", null,
      h("tr", null, ["query", "type", "meaning"].map((title) => h("th", null, title))),
      call.parameters.map((one) => h("tr", null,
        h("td", null, h("code", null, one.name)), h("td", null, kind(one.schema)), h("td", null, one.description))))),
    call.requestBody && h("p", null, "Body: ", content(call.requestBody)),
    h("p", null, "Answer: ", content(call.responses["200"])),
    errors(Object.entries(call.responses).filter(([status]) => status !== "200")));

  const example = "curl http://HOST:PORT/predict -d '{\"inputs\": \"fell off a ladder\", \"parameters\": {\"top_k\": 3}}'";

  xm.header("Docs", null);
  xm.withKey(async () => {
    const found = await (await fetch("openapi.json")).json();
    const calls = Object.entries(found.paths).filter(([path]) => !path.startsWith("/models/"));
    xm.replace(document.getElementById("app"),
      h("h1", null, found.info.title + " " + found.info.version),
      h("p", null, found.info.description),
      h("p", null, "The same for programs: ", h("a", {href: "openapi.json"}, "/openapi.json"), " (OpenAPI " + found.openapi + "). ",
        "Questions to one of several models: the same paths below ", h("code", null, "/models/NAME"), "."),
      xm.scroll(h("pre", null, example)),
      calls.map(([path, methods]) => Object.entries(methods).map(([method, call]) => operation(path, method, call))),
      h("h1", null, "Objects"),
      Object.entries(found.components.schemas).map(([title, schema]) => h("section.card", {id: title},
        h("h2", null, title), xm.scroll(h("pre", null, JSON.stringify(schema, null, 2))))));
    if (location.hash) location.replace(location.hash);
  });
})();
