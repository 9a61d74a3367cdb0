// An answer as a test of the pipeline: text for a file of tests, which its reader completes.

/** A text as a string of RON. */
export function ron(text) {
  const escapes = { '\\': '\\\\', '"': '\\"', '\n': '\\n', '\r': '\\r', '\t': '\\t' };
  // eslint-disable-next-line no-control-regex
  const escaped = text.toWellFormed().replace(/[\\"\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g,
    c => escapes[c] ?? `\\u{${c.codePointAt(0).toString(16)}}`);
  return `"${escaped}"`;
}

/** A line of a comment. */
const comment = text => text.toWellFormed().replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]+/g, ' ');

/** The first characters of a text, none of them cut. */
const first = (text, most) => [...text].slice(0, most).join('');

/** What the answer is held to: what it says between marks where it first cites. '' if it says nothing but marks. */
function core(answer) {
  const sentences = answer.split(/(?<=[.!?。！？])\s|\n/);
  const cited = sentences.filter(part => /\[\d/.test(part));
  const said = [...cited, ...sentences].flatMap(part => part.split(/\[\d+(?:\s*,\s*\d+)*\]/)).map(part => part.trim());
  return first(said.find(part => /[\p{L}\p{N}]/u.test(part)) ?? '', 200);
}

/** `turn`: its text, answer, history, collection, record and whether it was helpful. Returns the test. */
export function asTest({ text, answer, history, collection, record, helpful }) {
  const said = history.map(({ speaker, text: words }) => `${speaker === 'user' ? 'User' : 'Agent'}(${ron(words)})`);
  const number = 1 + history.filter(({ speaker }) => speaker === 'user').length;
  const cited = new Set((record?.citations ?? []).map(citation => citation.passage));
  const documents = [...new Set((record?.hits ?? []).filter(hit => cited.has(hit.passage)).map(hit => hit.document))];
  const words = core(answer);
  const expected = helpful
    ? [`turn: ${number}`, record?.status === 'idk' ? 'status: Idk' : 'status: Answered', words && `answer: ${ron(words)}`,
      documents.length && `hits: [${documents.map(ron).join(', ')}]`]
    : [`turn: ${number}`, 'status: Answered', 'answer: "WRITE HERE WHAT IT MUST SAY"'];
  return [
    '    Test(',
    `        name: ${ron(first(text, 80))},`,
    ...(helpful ? [] : [`        // It said: ${comment(first(answer, 300))}`]),
    ...(collection ? [`        collection: Some(${ron(collection)}),`] : []),
    `        turns: [${[...said, `User(${ron(text)})`].join(', ')}],`,
    `        expect: [Expect(${expected.filter(Boolean).join(', ')})],`,
    '    ),',
    '',
  ].join('\n');
}
