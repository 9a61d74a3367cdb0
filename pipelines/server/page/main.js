// The page: selections, views, and messages about the server.

import { askAgain, isSignedIn, signOut } from './api.js';
import { button, byId, clean, clock, h, name } from './dom.js';
import { Corpora } from './corpora.js';
import { Graph } from './graph.js';
import { Shelf } from './kept.js';
import { Letters } from './letters.js';
import { Live } from './live.js';
import { Reports } from './reports.js';
import { Review } from './review.js';
import { Search } from './search.js';
import { withdrawAll } from './share.js';
import { Talk } from './talk.js';
import { Tuning } from './tune.js';
import { Workflow } from './turn.js';
import { Views } from './views.js';

const views = new Views();
const live = new Live();
const workflow = new Workflow(byId('panel-turn'));
const tuning = new Tuning(byId('panel-tune'));
const reports = new Reports(byId('panel-reports'));
new Graph(live, byId('panel-graph'));
new Corpora(live, byId('panel-corpora'));
new Search(live, byId('panel-search'));
const letters = new Letters(live, byId('panel-letters'));
const review = new Review(live, byId('panel-review'));
const [chooser, collection] = [byId('pipeline'), byId('collection')];

const talk = new Talk({
  pipeline: () => live.pipeline,
  collection: () => (live.pipeline?.needs_collection ? collection.value : undefined),
  adjust: () => tuning.adjust,
  show(turn, isWanted) {
    workflow.show(turn);
    if (isWanted || (!views.isNarrow && !document.body.classList.contains('wide') && ['tune', 'graph', 'search'].every(key => byId(`panel-${key}`).hidden))) views.show('turn');
  },
  cite(turn, numbers, sentence) {
    views.show('turn');
    workflow.cite(turn, numbers, sentence);
  },
  fresh() {
    workflow.clear();
    tuning.reset();
    if (views.isNarrow) views.show('talk');
  },
  unkept() {
    banner('unkept', 'bad', h('p', {}, 'The browser cannot keep this conversation: its storage is full or switched off. It is lost when the page is left.'));
  },
});

/** The caller whose conversations are shown. */
let owner;

live.addEventListener('pipelines', async () => {
  byId('sign-out').hidden = !isSignedIn();
  const is = live.caller?.name ?? '';
  if (is === owner) return;
  owner = is;
  await talk.shelf(await Shelf.of(is));
});

byId('sign-out').addEventListener('click', () => byId('sign-out-dialog').showModal());
byId('sign-out-cancel').addEventListener('click', () => byId('sign-out-dialog').close());
byId('sign-out-form').addEventListener('submit', async event => {
  event.preventDefault();
  if (byId('sign-out-delete').checked) {
    await Shelf.of(owner).then(async shelf => {
      const ids = (await shelf.list()).map(head => head.id);
      await withdrawAll(await shelf.links(ids));
      await shelf.remove(ids);
    }).catch(() => {});
  }
  signOut();
  // Nothing of the caller stays in the page.
  location.reload();
});

/** Fills a choice and keeps what is chosen. */
function choices(select, names) {
  const old = [...select.options].map(option => option.value);
  if (JSON.stringify(old) === JSON.stringify(names)) return;
  const chosen = select.value;
  select.replaceChildren(...names.map(of => h('option', { value: of }, clean(of))));
  if (names.includes(chosen)) select.value = chosen;
}

function chosen() {
  const pipeline = live.pipeline;
  tuning.pipeline(pipeline);
  byId('collection-choice').hidden = !pipeline?.needs_collection;
  choices(collection, (pipeline?.corpora ?? []).map(corpus => corpus.name));
}

live.addEventListener('pipelines', () => {
  choices(chooser, live.pipelines.map(pipeline => pipeline.name));
  chooser.value = live.name ?? '';
  chooser.disabled = !live.pipelines.length;
  chosen();
  reports.load();
});
live.addEventListener('chosen', () => { chosen(); banner('reload'); seen = undefined; });
chooser.addEventListener('change', () => live.choose(chooser.value));

tuning.addEventListener('change', () => {
  const note = byId('adjusted');
  note.hidden = !tuning.adjust;
  views.mark('tune', Boolean(tuning.adjust));
  if (tuning.adjust) {
    note.replaceChildren(h('p', {}, h('strong', {}, 'This conversation is adjusted: '), name(tuning.words), '.'), button('Reset', () => tuning.reset(), { 'aria-label': 'Reset the tuning' }));
  }
});

reports.addEventListener('change', () => views.enable('reports', reports.data.length > 0));
review.addEventListener('change', () => views.enable('review', review.isThere));
letters.addEventListener('change', () => views.enable('letters', letters.isThere));
views.addEventListener('show', ({ detail }) => {
  if (detail === 'letters') letters.load();
  if (detail === 'review') review.load();
  if (detail === 'reports') reports.load();
  if (detail === 'turn') workflow.shown();
});

const banners = new Map();

/** Shows a banner in the place `key`, or takes it away. */
function banner(key, css, ...children) {
  banners.get(key)?.remove();
  banners.delete(key);
  if (!css) return;
  const close = button('Close', () => banner(key), { class: 'quiet', 'aria-label': 'Close this message' });
  const made = h('div', { class: `banner ${css}`, role: css === 'bad' ? 'alert' : 'status' }, h('div', { class: 'words' }, ...children), close);
  banners.set(key, made);
  byId('banners').append(made);
}

function health(css, words) {
  const place = byId('health');
  place.className = `health ${css}`;
  const said = place.querySelector('.words');
  if (said.textContent !== words) said.textContent = words;
}

live.addEventListener('lost', () => {
  const { status, message } = live.problem;
  const words = status === 401 ? 'Token required' : status === 0 ? 'No connection' : 'No status';
  health('bad', words);
  if (banners.get('lost')?.dataset.message === message) return;
  if (status === 401) {
    banner('lost', 'bad', h('p', {}, 'The server requires a token.'), button('Enter a token', () => { askAgain(); live.retry(); }));
  } else {
    const next = status === 0 ? ' Is turnflow serve running? This page tries again every two seconds.' : ' This page tries again every two seconds.';
    banner('lost', 'bad', h('p', {}, clean(message), next));
  }
  banners.get('lost').dataset.message = message;
});
live.addEventListener('found', () => banner('lost'));

let seen;

live.addEventListener('status', () => {
  const { ready, epoch, corpora, reload } = live.status;
  const loading = corpora.filter(corpus => corpus.state === 'loading').map(corpus => corpus.name);
  const failed = corpora.filter(corpus => corpus.state === 'failed').map(corpus => corpus.name);
  if (failed.length) health('bad', `Corpus ${failed.join(', ')} failed`);
  else if (loading.length) health('wait', `Loading ${loading.join(', ')}`);
  else if (!ready) health('wait', 'Reading the sources');
  else health('good', `Ready, epoch ${epoch}`);
  const at = reload ? `${reload.at} ${reload.ok}` : null;
  if (at === seen) return;
  // A reload before the page was opened is not news.
  const isNews = seen !== undefined;
  seen = at;
  if (!reload) return banner('reload');
  if (!reload.ok) return banner('reload', 'bad', h('p', {}, `The reload of the pipeline file failed at ${clock(reload.at)}; the previous plan continues. Correct the file: with --watch it is reloaded automatically, otherwise send SIGHUP.`), h('pre', { tabindex: '0' }, clean(reload.problems)));
  return isNews ? banner('reload', 'good', h('p', {}, `The pipeline file was reloaded at ${clock(reload.at)}.`)) : banner('reload');
});

live.start();
