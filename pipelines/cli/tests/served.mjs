// What the scripts of libraries share: they are started with PACKAGES URL TOKEN ONCE CUT.
//
// ONCE is the token of a caller who may ask once; CUT is an address that cuts each connection in the midst of a reply.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, url, token, once, cut] = process.argv.slice(2);
const require = createRequire(`${packages}/package.json`);
// A package of the directory PACKAGES.
const load = (name) => import(pathToFileURL(require.resolve(name)));
const QUESTION = "When does the ferry leave?";
const NEXT = "And what does a ticket cost?";
// What is in the documents.
const TEXTS = ["The ferry to the island leaves at nine.", "A ticket for the ferry costs four euros."];

// Each page answers and marks the cited passage; the first is that of the question.
async function checkPages(urls) {
  assert(urls.length > 0, "there are no citations");
  for (const [at, page] of urls.entries()) {
    const response = await fetch(page);
    assert.equal(response.status, 200, page);
    const marked = /<section id="passage".*?<\/section>/s.exec(await response.text());
    assert(TEXTS.slice(0, at === 0 ? 1 : 2).some((text) => marked?.[0].includes(text)), `${page}: ${marked}`);
  }
}

// A call fails, and its error says why.
async function refused(call, ...told) {
  const result = await call().then(
    (result) => ({ result }),
    (problem) => ({ problem }),
  );
  assert("problem" in result, `this was no error: ${JSON.stringify(result)}`);
  for (const words of told) assert(String(result.problem.message ?? result.problem).includes(words), result.problem);
  return result.problem;
}

export { assert, checkPages, cut, load, NEXT, once, QUESTION, refused, token, url };
