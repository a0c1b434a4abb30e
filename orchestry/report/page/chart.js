'use strict';
// Figures as inline SVG, drawn at the size they have, with a cursor for pointer and keys.

const PAD = { left: 44, right: 14, top: 10, bottom: 26 };

function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** At most about `wanted` round numbers between low and high. */
function ticks(low, high, wanted) {
  const raw = (high - low || 1) / wanted;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((by) => by * size).find((by) => by >= raw);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) {
    found.push(Number(at.toFixed(10)));
  }
  return found;
}

const line = (points, x, y) =>
  points.map(([at, value], place) =>
    `${place ? 'L' : 'M'}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join('');

/** The range of all values, with a little air; whole [0, 1] where they nearly fill it. */
function rangeOf(series) {
  const values = series.flatMap((one) =>
    [...one.points, ...one.band ?? []].flatMap((point) => point.slice(1)));
  const low = Math.min(...values), high = Math.max(...values);
  if (low >= 0 && high <= 1 && high - low > 0.4) return [0, 1];
  const air = (high - low || Math.abs(high) || 1) * 0.12;
  const floor = low >= 0 ? 0 : -Infinity, ceiling = high <= 1 && low >= 0 ? 1 : Infinity;
  return [Math.max(floor, low - air), Math.min(ceiling, high + air)];
}

/**
 * A chart over whole numbers such as episodes. `spec`: label, unit of x, series ({name, points,
 * kind: line, dots or marks, tone, band: of a
 * line [x, low, high], quiet: not in the legend}), said(x) for the readout, open(x) for a click or Enter.
 */
function chart(spec) {
  const series = spec.series.filter((one) => one.points.length);
  const xs = [...new Set(series.flatMap((one) => one.points.map((point) => point[0])))]
    .sort((a, b) => a - b);
  const box = el('div', {
    class: 'chart', tabindex: 0, role: 'slider', 'aria-label': spec.label,
    'aria-valuemin': xs[0], 'aria-valuemax': xs.at(-1), 'aria-valuenow': xs.at(-1),
  });
  const readout = el('p', { class: 'readout' });
  const held = { at: xs.length - 1, cursor: null, x: null };
  const point = (place) => {
    held.at = Math.max(0, Math.min(xs.length - 1, place));
    const said = spec.said(xs[held.at]);
    readout.replaceChildren(said);
    box.setAttribute('aria-valuenow', xs[held.at]);
    box.setAttribute('aria-valuetext', said);
    held.cursor?.setAttribute('transform', `translate(${held.x(xs[held.at]).toFixed(1)} 0)`);
    spec.moved?.(xs[held.at]);
  };
  const draw = () => {
    const drawn = plot(series, xs, box.clientWidth || 640, spec.height ?? 220, spec);
    Object.assign(held, { cursor: drawn.cursor, x: drawn.x });
    box.replaceChildren(drawn.svg);
    point(held.at);
  };
  listen(box, xs, held, point, spec.open);
  new ResizeObserver(draw).observe(box);
  return el('figure', {}, legend(series.filter((one) => !one.quiet)), box, readout,
    spec.caption ? el('figcaption', {}, spec.caption) : null);
}

function listen(box, xs, held, point, open) {
  box.addEventListener('pointermove', (event) => {
    const at = event.clientX - box.getBoundingClientRect().left;
    let near = 0;
    xs.forEach((x, place) => {
      if (Math.abs(held.x(x) - at) < Math.abs(held.x(xs[near]) - at)) near = place;
    });
    point(near);
  });
  box.addEventListener('click', () => open?.(xs[held.at]));
  const page = Math.max(1, Math.round(xs.length / 10));
  const moves = {
    ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1,
    PageDown: -page, PageUp: page, Home: -Infinity, End: Infinity,
  };
  box.addEventListener('keydown', (event) => {
    if (event.key in moves) point(held.at + moves[event.key]);
    else if (event.key === 'Enter' && open) open(xs[held.at]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

function plot(series, xs, width, height, spec) {
  const [low, high] = rangeOf(series);
  const x = scale(xs[0], xs.at(-1), PAD.left + 6, width - PAD.right);
  const y = scale(low, high, height - PAD.bottom, PAD.top);
  const cursor = svg('line', {
    class: 'cursor', x1: 0, x2: 0, y1: PAD.top, y2: height - PAD.bottom,
  });
  const drawn = svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`,
    'aria-hidden': 'true' },
  axes(x, y, [xs[0], xs.at(-1)], [low, high], width, height, spec.unit), cursor,
  series.map((one) => mark(one, x, y)));
  return { svg: drawn, cursor, x };
}

function axes(x, y, across, up, width, height, unit) {
  const rows = ticks(up[0], up[1], height > 120 ? 4 : 2).map((at) => [
    svg('line', { class: 'grid', x1: PAD.left, x2: width - PAD.right, y1: y(at), y2: y(at) }),
    svg('text', { class: 'tick', x: PAD.left - 6, y: y(at) + 4, 'text-anchor': 'end' },
      compact(at)),
  ]);
  const columns = ticks(across[0], across[1], Math.max(2, Math.min(8, width / 90)))
    .filter(Number.isInteger)
    .map((at) => svg('text', {
      class: 'tick', x: x(at), y: height - 8, 'text-anchor': 'middle',
    }, compact(at)));
  const name = svg('text', { class: 'tick unit', x: width - PAD.right, y: height - 8,
    'text-anchor': 'end' }, unit);
  const free = columns.filter((tick) =>
    Number(tick.getAttribute('x')) < width - PAD.right - unit.length * 6.5 - 14);
  return [rows, free, name];
}

function mark(one, x, y) {
  const tone = `tone-${one.tone ?? 0}`;
  if (one.kind === 'line') {
    return [one.band ? bandOf(one.band, tone, x, y) : null,
      svg('path', { class: `line ${tone}`, d: line(one.points, x, y) })].filter(Boolean);
  }
  const shape = one.kind === 'marks'
    ? ([at, value]) => svg('rect', { class: `mark ${tone}`, x: x(at) - 4, y: y(value) - 4,
      width: 8, height: 8 })
    : ([at, value]) => svg('circle', { class: `dot ${tone}`, cx: x(at), cy: y(value), r: 2.6 });
  const path = one.kind === 'marks'
    ? svg('path', { class: `line thin ${tone}`, d: line(one.points, x, y) }) : null;
  return [path, one.points.map(shape)].flat().filter(Boolean);
}

function bandOf(band, tone, x, y) {
  const above = band.map(([at, , high]) => [at, high]);
  const below = band.map(([at, low]) => [at, low]).reverse();
  return svg('path', { class: `band ${tone}`,
    d: `${line(above, x, y)}${line(below, x, y).replace('M', 'L')}Z` });
}

function legend(series) {
  return el('ul', { class: 'legend' }, series.map((one) => {
    const mid = [[0, 0.5], [1, 0.5]];
    const points = one.kind === 'line' ? mid : [[0.5, 0.5]];
    const key = svg('svg', { width: 22, height: 12, 'aria-hidden': 'true' },
      mark({ ...one, points, band: null }, scale(0, 1, 1, 21), scale(0, 1, 12, 0)));
    return el('li', {}, key, ' ', shown(one.name));
  }));
}

/** A small curve of one quantity, with its last value. */
function small(name, points, unit, caption = null) {
  const value = el('span', { class: 'small-value' }, figure(points.at(-1)[1]));
  const width = 150, height = 46;
  const [low, high] = rangeOf([{ points }]);
  const x = scale(points[0][0], points.at(-1)[0], 3, width - 3);
  const y = scale(low, high, height - 4, 4);
  const cursor = svg('circle', { class: 'dot tone-0', r: 3 });
  const drawn = svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `${name}: from ${figure(points[0][1])} to ${figure(points.at(-1)[1])}` },
  svg('line', { class: 'grid', x1: 0, x2: width, y1: height - 1, y2: height - 1 }),
  svg('path', { class: 'line thin tone-0', d: line(points, x, y) }), cursor);
  const at = new Map(points);
  const move = (where) => {
    if (!at.has(where)) return;
    cursor.setAttribute('cx', x(where));
    cursor.setAttribute('cy', y(at.get(where)));
    value.replaceChildren(figure(at.get(where)));
  };
  move(points.at(-1)[0]);
  const node = el('figure', { class: 'small' },
    el('figcaption', {}, el('span', { class: 'small-name' }, shown(name)), value), drawn,
    caption ? el('p', { class: 'fine' }, caption) : null);
  drawn.addEventListener('pointermove', (event) => {
    const where = event.clientX - drawn.getBoundingClientRect().left;
    move(points.reduce((near, point) =>
      Math.abs(x(point[0]) - where) < Math.abs(x(near[0]) - where) ? point : near)[0]);
  });
  return { node, move };
}

/** An estimate with its interval about zero; `reach` is the end of the axis on both sides. */
function whisker(at, low, high, reach) {
  const width = 88, height = 16, x = scale(-reach, reach, 6, width - 6);
  const clear = low > 0 || high < 0 ? (at > 0 ? 'good' : 'bad') : 'unsure';
  return svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, class: `whisker ${clear}`,
    'aria-hidden': 'true' },
  svg('line', { class: 'axis', x1: x(0), x2: x(0), y1: 0, y2: height }),
  svg('line', { class: 'span', x1: x(Math.max(-reach, low)), x2: x(Math.min(reach, high)),
    y1: 8, y2: 8 }),
  svg('circle', { cx: x(at), cy: 8, r: 3.6 }));
}

/** All samples of a group on one axis, the chosen one filled. */
function strip(values, chosen) {
  const width = 300, height = 34;
  const low = Math.min(0, ...values), high = Math.max(1, ...values);
  const x = scale(low, high, 8, width - 8);
  const centre = mean(values);
  const heaps = new Map();
  const dots = values.map((value, place) => {
    const column = Math.round(x(value) / 5);
    const level = heaps.get(column) ?? 0;
    heaps.set(column, level + 1);
    return svg('circle', { class: chosen.includes(place) ? 'own' : 'other', cx: x(value),
      cy: 22 - Math.min(level, 4) * 4.4, r: chosen.includes(place) ? 4.2 : 3 });
  });
  return svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, class: 'strip',
    role: 'img', 'aria-label': `Values of the group: ${values.map((v) => fixed(v)).join(', ')}` },
  svg('line', { class: 'axis', x1: 2, x2: width - 2, y1: 27, y2: 27 }),
  svg('line', { class: 'mean', x1: x(centre), x2: x(centre), y1: 2, y2: 33 }), dots);
}
