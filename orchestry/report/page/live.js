'use strict';
// A page that is served hears of its runs as they grow. One on disk has no server: nothing happens.

const live = { follow: false, late: false, state: null };
const MOST_TREES = 40;

const served = () => Boolean(DATA.live);
const address = (what, rest) => `${what}?token=${DATA.live.token}${rest}`;

function hearNews() {
  if (!served()) return;
  $('now').hidden = $('follow').hidden = false;
  $('follow').addEventListener('click', () => follow(!live.follow));
  follow(RUNS[state.run].now.state === 'running' && !location.hash.includes('node='));
  showNow();
  const source = new EventSource(address('news', `&pages=${DATA.live.pages}`));
  source.addEventListener('message', (event) => hear(JSON.parse(event.data)));
  source.addEventListener('open', () => connection(''));
  source.addEventListener('error', () => connection(source.readyState === EventSource.CLOSED
    ? 'The server refuses this page: too many pages are open, or it was started anew and printed ' +
      'another address.'
    : 'The connection is lost, and the page tries again. If the server has ended, start ' +
      '`orchestry watch` and open the new address.'));
}

const connection = (what) => $('connection').replaceChildren(shown(what));

function hear(news) {
  if (news.reload) return loadAnew();
  DATA.arms = news.arms ?? DATA.arms;
  connection(news.fault ? `What is shown may be old: ${news.fault}` : '');
  const grown = new Map();
  for (const one of news.runs ?? []) {
    const run = RUNS[one.run];
    run.now = one.now;
    if (!one.entry) continue;
    Object.assign(run, one.entry);
    if (one.from === 0) forgetTrees(one.run);
    run.rows.splice(one.from, Infinity, ...one.rows);
    grown.set(one.run, one.rows.length);
  }
  showNow();
  if (grown.size || live.late) redraw(grown);
}

/** An evaluation was added: runs have other places then, so the chosen one is found by its name. */
function loadAnew() {
  sessionStorage.setItem('chosen', folderOf(RUNS[state.run]));
  location.reload();
}

function placeBefore() {
  const chosen = served() ? sessionStorage.getItem('chosen') : null;
  if (chosen !== null) sessionStorage.removeItem('chosen');
  return RUNS.findIndex((run) => folderOf(run) === chosen);
}

const folderOf = (run) => run.of === null ? run.folder : `${RUNS[run.of].folder}/${run.folder}`;

/** Draws anew what has changed; what the reader holds open or points at stays as it is. */
function redraw(grown) {
  live.late = false;
  if (mainRuns().length > 1) kept($('compare'), () => compareRuns((place) => chooseRun(place)));
  const run = RUNS[state.run];
  kept($('run'), () => showRun(state.run, chooseRun, openEpisode));
  if (run.steps || !grown.has(state.run)) return;
  const first = state.episode === null;
  list.grow(run);
  if (run.rows.length && (first || (live.follow && grown.get(state.run)))) {
    chooseEpisode(run.rows.at(-1).episode, null, false);
  }
}

function kept(section, draw) {
  if (section.querySelector('.chart:hover, .chart:focus')) {
    live.late = true;
    return;
  }
  const open = new Set([...section.querySelectorAll('details[open] > summary')].map(textIn));
  const focused = section.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  draw();
  for (const title of section.querySelectorAll('details > summary')) {
    if (!open.has(textIn(title))) continue;
    title.parentElement.open = true;
    title.parentElement.dispatchEvent(new Event('toggle'));
  }
  if (focused) [...section.querySelectorAll(focused.name)].find((node) =>
    keyOf(node).text === focused.text)?.focus({ preventScroll: true });
}

const textIn = (node) => node.textContent.replace(/\d+/g, '#');
const keyOf = (node) => ({ name: node.localName, text: node.ariaLabel ?? (node.id || textIn(node)) });

/** Whether the newest episode is opened as it ends. */
function follow(on) {
  live.follow = on && served();
  $('follow').setAttribute('aria-pressed', String(live.follow));
  const last = RUNS[state.run].rows.at(-1);
  if (live.follow && last && last.episode !== state.episode) chooseEpisode(last.episode, null, false);
}

const STATES = { ...ENDINGS, running: 'running', starting: 'starting: models are loaded',
  away: 'stopped: the server stayed away', 'cut off': 'cut off: its process was killed or crashed' };

/** What the chosen run does at this moment. */
function showNow() {
  const { now, rows, summary: found, steps } = RUNS[state.run];
  const going = now.state === 'running';
  if (live.state !== now.state) $('now-state').replaceChildren(STATES[now.state] ?? now.state);
  live.state = now.state;
  $('now').classList.toggle('going', going);
  const done = steps ? [count(steps.last.steps ?? 0), `steps, ${ofSteps(steps)}`]
    : [count(rows.length), found ? `of ${count(found.episodes_asked)} episodes` : ''];
  const cards = [['progress', ...done], ['time left', span(now.eta_s), going ? 'at this pace' : '']];
  if (!steps) {
    cards.push(['calls in flight', going ? count(now.open) : '\u2013', ''],
      ['tokens per second', going ? count(Math.round(now.tokens_per_s)) : '\u2013', 'of answers'],
      ['dollars', dollars(found?.cost_usd), isNumber(found?.budget_usd)
        ? `of $${found.budget_usd}` : ''],
      ['dollars per minute', going ? dollars(now.usd_per_min) : '\u2013', '']);
  }
  refill($('now-figures'), cards.map(([name, value, more]) => el('div', {},
    el('dt', {}, name), el('dd', {}, value, el('small', {}, more || '\u00a0')))));
  refill($('now-last'), now.last.length ? ['Last answers: ', now.last.map(
    ([agent, purpose, seconds, tokens]) => el('span', {}, el('b', {}, shown(agent)),
      ` ${purpose === 'act' ? '' : `${purpose}, `}${count(tokens)} tokens, ${fixed(seconds, 1)} s`))]
    : null);
}

/** Seconds in words. */
function span(seconds) {
  if (!isNumber(seconds)) return '\u2013';
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  return hours ? `${hours} h ${minutes % 60} min` : minutes ? `${minutes} min` : `${Math.round(seconds)} s`;
}

function forgetTrees(place) {
  for (const id of [...held.trees.keys()]) {
    if (id.startsWith(`episode-${place}-`)) held.trees.delete(id);
  }
}

/** Asks for an episode's tree, then shows it if it is still wanted. */
async function fetchTree(place, row, node) {
  const wanted = () => state.run === place && state.episode === row.episode && state.node === null;
  const answer = await fetch(address('tree', `&run=${place}&episode=${row.episode}`))
    .catch(() => null);
  if (!answer?.ok) return wanted() && missingTree(row);
  const id = `episode-${place}-${row.episode}`;
  held.trees.set(id, grown(await answer.json()));
  if (held.trees.size > MOST_TREES) held.trees.delete(held.trees.keys().next().value);
  if (wanted()) showTree(row, held.trees.get(id), node);
}
