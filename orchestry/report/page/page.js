'use strict';
// What is shown: one run, one episode of it, one sample; kept in the address after the #.

const state = { run: 0, episode: null, node: null };
const tree = new TreeView((id) => {
  follow(false);
  chooseNode(id);
});
const list = new EpisodeList((episode, focus = true) => {
  follow(false);
  chooseEpisode(episode, null, focus);
});

function remember() {
  const { run, episode, node } = state;
  const parts = [`run=${run}`, episode === null ? '' : `episode=${episode}`, node ? `node=${node}` : ''];
  history.replaceState(null, '', `#${parts.filter(Boolean).join('&')}`);
}

function remembered() {
  const found = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const whole = (text) => /^\d+$/.test(text ?? '') ? Number(text) : null;
  return { run: whole(found.run), episode: whole(found.episode), node: found.node ?? null };
}

function chooseRun(place, episode = null, node = null) {
  Object.assign(state, { run: place, episode: null, node: null });
  const run = RUNS[place];
  for (const button of document.querySelectorAll('.choose')) {
    button.setAttribute('aria-pressed', String(Number(button.dataset.run) === place));
  }
  showRun(place, chooseRun, openEpisode);
  if (served()) showNow();
  $('browser-of').replaceChildren(RUNS.length > 1 ? shown(nameOf(run)) : '');
  list.chosen = null;
  list.show(run);
  const there = run.rows.find((row) => row.episode === episode) ?? bestRow(run);
  if (there) chooseEpisode(there.episode, node, false);
  else {
    $('episode').replaceChildren(el('p', { class: 'notice' }, 'No episode of this run is finished.'));
    $('canvas').replaceChildren();
    $('detail').replaceChildren();
    remember();
  }
}

/** The best episode whose tree is in the page. */
function bestRow(run) {
  const kept = run.rows.filter((row) => row.kept);
  return (kept.length ? kept : run.rows)
    .reduce((best, row) => !best || row.best > best.best ? row : best, null);
}

function chooseEpisode(episode, node, focus) {
  const run = RUNS[state.run], row = run.rows.find((one) => one.episode === episode);
  const found = treeOf(state.run, episode);
  state.episode = episode;
  list.mark(episode, focus);
  if (found) return showTree(row, found, node);
  state.node = null;
  if (served()) fetchTree(state.run, row, node);
  else missingTree(row);
}

function showTree(row, found, node) {
  const chosen = found.nodes.has(node) ? node : found.record.best;
  tree.show(found, chosen);
  showEpisode(state.run, row, found, tree, (id) => tree.select(id));
  chooseNode(chosen);
}

function missingTree(row) {
  state.node = null;
  $('episode').replaceChildren(
    el('h3', { class: 'episode-title' }, `Episode ${row.episode} `,
      el('span', { class: 'of' }, shown(row.problem))),
    el('p', { class: 'notice' }, served() ? 'The server has no such episode: it may have been ' +
      'rolled back.' : 'This page had no room for its tree: its samples are in episodes.jsonl of ' +
      'the run.'));
  $('canvas').replaceChildren();
  $('detail').replaceChildren();
  remember();
}

function chooseNode(id) {
  state.node = id;
  const rating = RUNS[state.run].ratings
    .find((one) => one.episode === state.episode && one.node === id);
  showDetail(tree.tree, id, rating);
  remember();
}

/** From a curve or a behaviour: shows the episode and goes there. */
function openEpisode(episode) {
  follow(false);
  chooseEpisode(episode, null, false);
  $('browser').scrollIntoView();
  list.mark(episode, true);
}

const KEYS = [
  ['j, k', 'next and previous episode', { j: () => list.step(1, false), k: () => list.step(-1, false) }],
  ['l, t, d', 'go to the list, the tree, the details', {
    l: () => list.mark(state.episode, true), t: () => state.node && tree.mark(true),
    d: () => $('detail').focus() }],
  ['\u2191 \u2193', 'in the tree: previous and next sample', {}],
  ['\u2192 \u2190', 'in the tree: open or go in, close or go back', {}],
  ['Space, *', 'in the tree: open or close one; open all', {}],
  ['b, w', 'the best leaf, the worst leaf', {
    b: () => state.node && tree.select(tree.tree.record.best),
    w: () => state.node && tree.select(worstLeaf(tree.tree).id) }],
  ['p', 'hide or show what was pruned', { p: () => $('pruned')?.click() }],
  ['[, ]', 'previous and next run', { '[': () => stepRun(-1), ']': () => stepRun(1) }],
  ['f', 'follow the newest episode, on a page that is served', { f: () => follow(!live.follow) }],
  ['/', 'filter the episodes', { '/': () => $('filter').focus() }],
  ['?', 'these keys; Esc closes', { '?': () => $('help').showModal() }],
];

function stepRun(by) {
  const to = state.run + by;
  if (to >= 0 && to < RUNS.length) chooseRun(to);
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || $('help').open) return;
  if (RUNS[state.run].steps && !['[', ']', '?'].includes(event.key)) return; // without episodes
  if (event.key === 'Escape' && event.target === $('filter')) list.mark(state.episode, true);
  if (event.target.closest('input, select, textarea')) return;
  for (const [, , actions] of KEYS) {
    if (!Object.hasOwn(actions, event.key)) continue;
    event.preventDefault();
    return actions[event.key]();
  }
}

function helpDialog() {
  $('help').replaceChildren(el('h2', { id: 'help-title' }, 'Keys'),
    el('table', { class: 'bare' }, el('tbody', {}, KEYS.map(([keys, what]) =>
      el('tr', {}, el('th', { scope: 'row' }, keys.split(' ').map((key) => [
        el('kbd', {}, key.replace(',', '')), ' '])), el('td', {}, what))))),
    el('form', { method: 'dialog' }, el('button', {}, 'Close')));
  $('keys').addEventListener('click', () => $('help').showModal());
}

function masthead() {
  const runs = mainRuns().map((place) => RUNS[place]);
  const tasks = [...new Set(runs.map((run) => run.task))].join(', ');
  document.title = `${tasks}: Orchestry`;
  $('title').replaceChildren(shown(tasks));
  $('standfirst').replaceChildren(runs.length > 1
    ? `${runs.length} runs side by side${runs.every((run) => run.steps) ? ''
      : ', and every episode of them'}`
    : runs[0].steps ? 'What small neural policies learned, step by step'
    : shown(`What a team of ${teamOf(runs[0])} did and learned, episode by episode`));
  $('colophon').replaceChildren(shown('Made from the run directories ' +
    runs.map((run) => run.orchestry ? `${run.folder} (orchestry ${run.orchestry})` : run.folder)
      .join(', ') + (served() ? ', as they grow. `orchestry report` writes a page to keep.'
      : '. The page holds all it shows and asks no network.')));
}

function teamOf(run) {
  const agents = [...new Set((run.summary?.usage ?? [])
    .filter((row) => row.purpose === 'act').map((row) => row.agent))];
  return agents.length === 1 ? `one agent, ${agents[0]},`
    : agents.length ? `${agents.length} agents` : 'agents';
}

function start() {
  masthead();
  helpDialog();
  compareRuns((place) => chooseRun(place));
  const { run, episode, node } = remembered();
  const before = placeBefore();
  chooseRun(before >= 0 ? before : RUNS[run] ? run : 0, episode, node);
  document.addEventListener('keydown', onKey);
  hearNews();
  window.addEventListener('hashchange', () => {
    const wanted = remembered();
    const news = Object.keys(state).some((key) => wanted[key] !== state[key]);
    if (news && RUNS[wanted.run]) chooseRun(wanted.run, wanted.episode, wanted.node);
  });
}

start();
