// GPU tab: kernels with distributions, occupancy, queues. Memory tab: copies, peaks, curves.

function gpuTab(report, go) {
  const { device } = report;
  if (device.kernels.length === 0) return [note('No device work was recorded.')];
  const total = sum(device.kernels.map((row) => row.total_ns)) + device.left_out_ns;
  return [...(isPool ? [] : [heading('Device occupancy during compute'), occupancy(device)]),
    heading('Kernels, copies and sets'),
    note(`Over all ranks. Open a row for its ranks, spread and histogram.${device.left_out_names ? ` ${count(device.left_out_names)} further names, ${nanos(device.left_out_ns)} in ${count(device.left_out_count)} rows, are not listed.` : ''}`),
    legend([...new Set(device.kernels.map((row) => row.class))]),
    table([
      { title: 'name', kind: 'name', get: (row) => row.short_name, full: (row) => row.name },
      { title: 'class', kind: 'words', get: (row) => row.class }, { title: 'count', kind: 'count', get: (row) => row.count },
      { title: 'time', kind: 'ns', get: (row) => row.total_ns, bar: (row) => colour(row.class) },
      { title: '% of device time', kind: 'percent', get: (row) => 100 * row.total_ns / Math.max(1, total) },
      { title: 'mean', kind: 'ns', get: (row) => row.total_ns / row.count },
      { title: 'shortest', kind: 'ns', get: (row) => Math.min(...row.ranks.map((one) => one.min_ns)) },
      { title: 'longest', kind: 'ns', get: (row) => Math.max(...row.ranks.map((one) => one.max_ns)) },
      { title: 'durations', kind: 'text', get: (row) => row.durations.length, cell: (row) => spark(row.durations, row.class) },
      ...(isPool ? [] : [{ title: 'blocks/SM', kind: 'number', get: (row) => meanOver(row.ranks, 'blocks_per_sm') },
        { title: 'occupancy', kind: 'percent', get: (row) => meanOver(row.ranks, 'occupancy_pct'), tip: 'estimated by the profiler' }])],
    device.kernels, { top: 25, sort: 3, search: 'search kernels', detail: (row) => kernelDetail(row, go) }),
    ...(isPool ? [] : [heading('Queues of launched work'), table([
      { title: 'rank', kind: 'number', get: (row) => row.rank }, { title: 'device', kind: 'number', get: (row) => row.device },
      { title: 'stream', kind: 'number', get: (row) => row.stream }, { title: 'launches', kind: 'count', get: (row) => row.launch_count },
      { title: 'mean length', kind: 'number', get: (row) => row.length_mean }, { title: 'p50', kind: 'count', get: (row) => row.length_p50 },
      { title: 'p95', kind: 'count', get: (row) => row.length_p95 }, { title: 'longest', kind: 'count', get: (row) => row.length_max },
      { title: 'waiting', kind: 'ns', get: (row) => row.waiting_ns, bar: () => colour('delay') }], device.queues, { top: 12 })])];
}

function meanOver(ranks, key) {
  const known = ranks.filter((row) => row[key] != null);
  const weight = sum(known.map((row) => row.total_ns));
  return weight > 0 ? sum(known.map((row) => row[key] * row.total_ns)) / weight : null;
}

function occupancy(device) {
  const known = device.occupancy.filter((row) => row.kernel_count > 0);
  if (known.length === 0) return note('The traces have no launch shapes with blocks per SM.');
  return el('div', {}, table([
    { title: 'rank', kind: 'number', get: (row) => row.rank }, { title: 'device', kind: 'number', get: (row) => row.device },
    { title: 'compute kernels', kind: 'count', get: (row) => row.kernel_count }, { title: 'kernel time', kind: 'ns', get: (row) => row.kernel_ns },
    { title: 'SM efficiency (estimate)', kind: 'percent', get: (row) => row.sm_efficiency_pct, tip: 'over time: min(1, blocks per SM)', bar: () => colour('compute') },
    { title: 'occupancy (estimate)', kind: 'percent', get: (row) => row.occupancy_pct, bar: () => colour('compute') },
    { title: 'less than one block per SM', kind: 'percent', get: (row) => row.few_blocks_pct, tip: 'share of the time of compute kernels' }], known, { top: 64 }),
  note('SM efficiency is the share of SMs that have a block to run, averaged over the time of compute kernels without communication. Occupancy is the share of the warps that an SM can hold.'));
}

function kernelDetail(row, go) {
  const parts = [el('p', { class: 'full-name', text: plain(row.name) }), el('div', { class: 'tools' }, press('find on the timeline', () => go.find(row.name)))];
  const rows = row.ranks.map((one) => ({ label: `rank ${one.rank}`, min: one.min_ns, p25: one.p25_ns, p50: one.p50_ns, p75: one.p75_ns, p95: one.p95_ns, max: one.max_ns }));
  parts.push(el('div', { class: 'columns' },
    el('div', {}, el('h3', { text: 'Durations, all ranks' }), el('div', { class: 'scroll' }, histogram(row.durations, row.class, nanos)),
      row.bytes.length ? el('h3', { text: 'Bytes' }) : null, row.bytes.length ? el('div', { class: 'scroll' }, histogram(row.bytes, 'memory', bytes)) : null),
    el('div', {}, el('h3', { text: 'Spread per rank (box: quartiles, tick: 95 %)' }), el('div', { class: 'scroll' }, spreads(rows, row.class)))));
  parts.push(table([
    { title: 'rank', kind: 'number', get: (one) => one.rank }, { title: 'count', kind: 'count', get: (one) => one.count },
    { title: 'time', kind: 'ns', get: (one) => one.total_ns }, { title: '% of busy', kind: 'percent', get: (one) => one.busy_pct },
    { title: 'p5', kind: 'ns', get: (one) => one.p5_ns }, { title: 'p50', kind: 'ns', get: (one) => one.p50_ns }, { title: 'p95', kind: 'ns', get: (one) => one.p95_ns },
    { title: 'grid', kind: 'text', get: (one) => one.grid ?? '' }, { title: 'block', kind: 'text', get: (one) => one.block ?? '' },
    { title: 'shapes', kind: 'count', get: (one) => one.shape_count }, { title: 'registers', kind: 'count', get: (one) => one.registers },
    { title: 'shared memory', kind: 'bytes', get: (one) => one.shared_memory_bytes }, { title: 'streams', kind: 'text', get: (one) => one.streams },
    { title: 'bytes', kind: 'bytes', get: (one) => one.bytes }], row.ranks, { top: 64 }));
  return parts;
}

function memoryTab(report) {
  const { memory } = report;
  const curvesOf = memory.curves.filter((one) => one.points.length > 1);
  return [heading('Copies and sets'), table([
    { title: 'kind', kind: 'name', get: (row) => row.kind }, { title: 'rank', kind: 'number', get: (row) => row.rank },
    { title: 'device', kind: 'number', get: (row) => row.device }, { title: 'count', kind: 'count', get: (row) => row.count },
    { title: 'bytes', kind: 'bytes', get: (row) => row.bytes }, { title: 'time', kind: 'ns', get: (row) => row.time_ns, bar: () => colour('memory') },
    { title: 'GB/s per copy', kind: 'number', get: (row) => row.gb_per_s }, { title: 'GB/s total', kind: 'number', get: (row) => row.gb_per_s_together },
    { title: 'concurrency', kind: 'number', get: (row) => row.concurrency_mean }], memory.copies, { top: 20, sort: 5, empty: 'No copies and sets.' }),
  heading('Allocated memory over time'),
  curvesOf.length === 0 ? note('The memory profiler was off (profile_memory=True turns it on).') : el('div', {}, curvesOf.map((one) => el('div', {},
    el('h3', { text: `rank ${one.rank}, ${one.device < 0 ? 'host' : `device ${one.device}`}: allocated (line) and reserved (dashed)` }),
    curves(one.points, ['s-allocated', 's-reserved'], bytes)))),
  memory.peaks.length ? heading('Peaks') : null,
  memory.peaks.length ? table([
    { title: 'rank', kind: 'number', get: (row) => row.rank }, { title: 'device', kind: 'text', get: (row) => (row.device < 0 ? 'host' : String(row.device)) },
    { title: 'allocated', kind: 'bytes', get: (row) => row.allocated_bytes_max, bar: () => colour('memory') }, { title: 'reserved', kind: 'bytes', get: (row) => row.reserved_bytes_max },
    { title: 'unused share', kind: 'percent', get: (row) => row.unused_pct }, { title: 'share of the device', kind: 'percent', get: (row) => row.device_pct },
    { title: 'operator', kind: 'name', get: (row) => row.operator ?? '' }, { title: 'inside', kind: 'name', get: (row) => row.outermost ?? '' }], memory.peaks) : null,
  memory.operators.length ? heading('Allocations by operator') : null,
  memory.operators.length ? table([
    { title: 'operator', kind: 'name', get: (row) => row.operator || '(no operator)' }, { title: 'rank', kind: 'number', get: (row) => row.rank },
    { title: 'device', kind: 'text', get: (row) => (row.device < 0 ? 'host' : String(row.device)) }, { title: 'allocations', kind: 'count', get: (row) => row.allocation_count },
    { title: 'allocated', kind: 'bytes', get: (row) => row.allocated_bytes, bar: () => colour('memory') }, { title: 'freed', kind: 'bytes', get: (row) => row.freed_bytes },
    { title: 'largest', kind: 'bytes', get: (row) => row.largest_bytes }], memory.operators, { sort: 4, search: 'search operators' }) : null];
}
