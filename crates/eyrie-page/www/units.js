// Times, sizes and numbers for people, as Eyrie's lines on a terminal have them (eyrie-units).

function digits(value) {
  const size = Math.abs(value);
  if (size >= 99.95 || Number.isInteger(value)) return value.toFixed(0);
  return size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

/** A time in seconds: 6.02 ms, 14.2 s. */
export function time(seconds) {
  const ns = seconds * 1e9;
  if (ns >= 999.5e6) return `${digits(seconds)} s`;
  if (ns >= 999.5e3) return `${digits(ns / 1e6)} ms`;
  if (ns >= 999.5) return `${digits(ns / 1e3)} µs`;
  return `${ns.toFixed(0)} ns`;
}

/** How long a job has run: 0:42, 3:07:12. */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  const two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** A size in bytes, in powers of 1024: 1.5 KiB, 12 MiB. */
export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (size >= 1000 && unit + 1 < units.length) {
    size /= 1024;
    unit += 1;
  }
  return `${size < 9.95 && !Number.isInteger(size) ? size.toFixed(1) : size.toFixed(0)} ${units[unit]}`;
}

/** A number with groups of three digits. */
export function number(value) {
  return Math.round(value).toLocaleString("en");
}

/** A number with a noun: 1 rank, 2 ranks. */
export function counted(value, one) {
  return `${number(value)} ${one}${value === 1 ? "" : "s"}`;
}
