'use strict';
// The list of episodes: filtered, sorted, and walked by keys.

const ORDERS = {
  episode: (one, other) => one.episode - other.episode,
  best: (one, other) => other.best - one.best || one.episode - other.episode,
  worst: (one, other) => one.best - other.best || one.episode - other.episode,
  spread: (one, other) => spreadOf(other) - spreadOf(one) || one.episode - other.episode,
  problem: (one, other) => one.problem.localeCompare(other.problem) || one.episode - other.episode,
};
const spreadOf = (row) => row.high - row.low;

class EpisodeList {
  constructor(choose) {
    this.box = $('episodes');
    this.choose = choose;
    this.rows = [];
    this.options = new Map();
    this.chosen = null;
    $('filter').addEventListener('input', () => this.render());
    $('sort').addEventListener('change', () => this.render());
    this.box.addEventListener('keydown', (event) => this.key(event));
    this.box.addEventListener('click', (event) => {
      const option = event.target.closest('[role=option]');
      if (option) this.choose(Number(option.dataset.episode));
    });
  }

  show(run) {
    this.run = run;
    $('filter').value = '';
    this.render();
  }

  render() {
    const wanted = $('filter').value.trim().toLowerCase();
    const hit = (row) => !wanted || String(row.episode) === wanted ||
      row.problem.toLowerCase().includes(wanted) ||
      Object.keys(row.tags).some((tag) => tag.toLowerCase().includes(wanted));
    this.rows = this.run.rows.filter(hit).sort(ORDERS[$('sort').value]);
    this.options = new Map(this.rows.map((row) => [row.episode, this.option(row)]));
    this.box.replaceChildren(...this.options.values());
    const all = this.run.rows.length;
    $('count').replaceChildren(this.rows.length === all ? plural(all, 'episode')
      : `${count(this.rows.length)} of ${plural(all, 'episode')}`);
    this.mark(this.chosen, false);
  }

  /** Shows the rows that were added to the run; the chosen one stays where it is. */
  grow(run) {
    const top = this.box.scrollTop, plain = !$('filter').value && $('sort').value === 'episode';
    const known = this.rows.length;
    if (!plain || this.run !== run || run.rows[known - 1]?.episode !== this.rows.at(-1)?.episode) {
      this.run = run;
      this.render();
      this.box.scrollTop = top;
      return;
    }
    for (const row of run.rows.slice(known)) {
      this.rows.push(row);
      this.options.set(row.episode, this.option(row));
      this.box.append(this.options.get(row.episode));
    }
    $('count').replaceChildren(plural(run.rows.length, 'episode'));
  }

  option(row) {
    return el('div', { role: 'option', class: row.kept ? 'row' : 'row gone', tabindex: -1,
      'data-episode': row.episode, 'aria-selected': 'false', 'aria-label':
      `episode ${row.episode}, ${row.problem}, best of k ${fixed(row.best)}, leaves from ` +
      `${fixed(row.low)} to ${fixed(row.high)}${row.kept ? '' : ', its tree is left out'}` },
    el('span', { class: 'place' }, String(row.episode)),
    el('span', { class: 'problem', title: row.problem }, shown(row.problem)),
    spread(row), el('span', { class: 'reward', title: 'best of k' }, fixed(row.best)));
  }

  /** Shows which episode is chosen; `focus` takes the keyboard there too. */
  mark(episode, focus) {
    this.options.get(this.chosen)?.setAttribute('aria-selected', 'false');
    for (const option of this.box.querySelectorAll('[tabindex="0"]')) option.tabIndex = -1;
    this.chosen = episode;
    const option = this.options.get(episode) ?? this.box.firstElementChild;
    if (!option) return;
    option.tabIndex = 0;
    if (this.options.has(episode)) option.setAttribute('aria-selected', 'true');
    if (focus) option.focus({ preventScroll: true });
    keepInView(option, this.box);
  }

  /** The episode so many places on from the chosen one, in the list's order. */
  step(by, focus) {
    if (!this.rows.length) return;
    const at = this.rows.findIndex((row) => row.episode === this.chosen);
    const to = at < 0 ? 0 : Math.max(0, Math.min(this.rows.length - 1, at + by));
    this.choose(this.rows[to].episode, focus);
  }

  key(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };
    if (event.key in moves) this.step(moves[event.key], true);
    else if (event.key === 'Enter' || event.key === 'ArrowRight') tree.mark(true);
    else return;
    event.preventDefault();
  }
}

/** From the lowest to the highest leaf, with their mean, on [0, 1]. */
function spread(row) {
  const width = 54, x = scale(0, 1, 3, width - 3);
  return svg('svg', { width, height: 14, viewBox: `0 0 ${width} 14`, class: 'spread',
    'aria-hidden': 'true' },
  svg('line', { class: 'axis', x1: 3, x2: width - 3, y1: 7, y2: 7 }),
  svg('line', { class: 'span', x1: x(row.low), x2: x(row.high), y1: 7, y2: 7 }),
  svg('line', { class: 'mean', x1: x(row.reward), x2: x(row.reward), y1: 3, y2: 11 }),
  svg('circle', { cx: x(row.best), cy: 7, r: 3 }));
}

/** Scrolls only the box, never the page; `head` of its height is covered. */
function keepInView(node, box, head = 0) {
  const inside = node.getBoundingClientRect(), frame = box.getBoundingClientRect();
  if (inside.top < frame.top + head) box.scrollTop -= frame.top + head - inside.top + 8;
  if (inside.bottom > frame.bottom) box.scrollTop += inside.bottom - frame.bottom + 8;
  if (inside.left < frame.left) box.scrollLeft -= frame.left - inside.left + 16;
  if (inside.right > frame.right) box.scrollLeft += inside.right - frame.right;
}
