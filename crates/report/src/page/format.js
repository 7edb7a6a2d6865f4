// Formats numbers for people.

// Formats a time with three digits: 812 ns, 1.50 µs, 13.0 ms, 4.21 s.
function nanos(ns) {
  if (ns == null) return '–';
  const size = Math.abs(ns);
  if (size < 1e3) return `${Math.round(ns)} ns`;
  const [value, unit] = size < 1e6 ? [ns / 1e3, 'µs'] : size < 1e9 ? [ns / 1e6, 'ms'] : [ns / 1e9, 's'];
  const magnitude = Math.abs(value);
  return `${value.toFixed(magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0)} ${unit}`;
}

// Formats a point in time to the nanosecond, in a unit that suits the span.
function moment(ns, span) {
  const [unit, name] = span >= 2e9 ? [1e9, 's'] : span >= 2e6 ? [1e6, 'ms'] : [1e3, 'µs'];
  const decimals = Math.max(0, Math.min(9, Math.ceil(Math.log10(unit / Math.max(span / 200, 1)))));
  return `${grouped((ns / unit).toFixed(decimals))} ${name}`;
}

// Rounds up to the next of 1, 2, 5, 10, 20, …
function tickSize(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  return [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough) ?? power;
}

function exactly(ns) { return `${grouped(String(Math.round(ns)))} ns`; }

function grouped(digits) {
  const [whole, rest] = digits.split('.');
  const commas = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ',');
  return rest === undefined ? commas : `${commas}.${rest}`;
}

function count(value) { return value == null ? '–' : grouped(String(value)); }

function percent(value) { return value == null ? '–' : `${value.toFixed(1)} %`; }

function number(value) { return value == null ? '–' : grouped(Number(value).toFixed(value % 1 === 0 ? 0 : 2)); }

function bytes(value) {
  if (value == null) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  let left = value;
  while (Math.abs(left) >= 1024 && at < units.length - 1) { left /= 1024; at += 1; }
  return at === 0 ? `${value} B` : `${left.toFixed(Math.abs(left) < 9.995 ? 2 : 1)} ${units[at]}`;
}

function words(name) { return String(name ?? '').replaceAll('_', ' '); }

function sum(values) { return values.reduce((total, value) => total + (value ?? 0), 0); }

// Shortens a long text.
function shortened(name, most) {
  return name.length <= most ? name : `${name.slice(0, most - 1)}…`;
}

// Our own runs use a pool of CPU threads as their device. For them, the page's own labels say "pool".
// Names from traces are never changed.
let isPool = false;
const POOL_WORDS = [
  [/kernels, copies and sets/g, 'operations of the pool'], [/Kernels, copies and sets/g, 'Operations of the pool'], [/kernel, copy and set/g, 'operation of the pool'],
  [/no stream of the device/g, 'nothing in the pool'], [/\bGPU\b/g, 'Pool'], [/ or Python/g, ''], [/: Python, mostly/g, ''], [/frames of Python/g, 'frames'],
  [/\bon the host\b/g, 'on its thread'], [/\bdevices\b/g, 'pools'], [/\bdevice\b/g, 'pool'], [/\bDevices\b/g, 'Pools'], [/ of the runtime or driver/g, ' that hands work over'],
  [/\bkernels\b/g, 'operations'], [/\bKernels\b/g, 'Operations'], [/\bkernel\b/g, 'operation'], [/copies and sets/g, 'copies'],
];
function say(text) { return isPool && text != null ? POOL_WORDS.reduce((said, [from, to]) => said.replace(from, to), String(text)) : text; }

// Removes from a name of our own traces the parts that are meant for other tools.
function plain(name) {
  if (isPool && name === 'cudaLaunchKernelExC') return 'rowmillLaunch';
  return String(name).replace(/ \(in place of ncclKernel\)$/, '');
}
