// Draws the page of a migration out of its document, with what base.js has.
"use strict";
(() => {
  const { page, section, table, remarks } = report;

  section("summary", "Models", null, table(page.columns, page.rows, "models"));
  if (page.notes.length)
    section("notes", "What to do, and what was seen", null, remarks("todo", page.notes));
  if (page.checks.length)
    section("checks", "Answers of the written repository", null, table(["model", "rows|", "inputs", "result"], page.checks, "answers"));
  section("method", "How this was found", page.method);
})();
