// Validates rule files by the JSON Schema of `tollgate schema`, with Ajv.
//
// Reads a JSON map from its input, with the `schema` and a list of `texts`, each a list of documents. Writes a JSON list: for
// each text null, or the first thing that is wrong.
"use strict";

const { readFileSync } = require("fs");
const Ajv = require("ajv");

const asked = JSON.parse(readFileSync(0, "utf8"));
// Strict, so that it refuses a schema with a keyword that it does not know. Editors know these two.
const ajv = new Ajv({
  allowUnionTypes: true,
  keywords: ["deprecationMessage", "doNotSuggest"],
  strict: true,
  strictTypes: false,
});
const validate = ajv.compile(asked.schema);

function firstFault(documents) {
  for (const document of documents) {
    if (!validate(document)) {
      const [{ instancePath, message }] = validate.errors;
      return `${instancePath}: ${message}`;
    }
  }
  return null;
}

process.stdout.write(JSON.stringify(asked.texts.map(firstFault)));
