// News from the server, as they come. The browser itself connects again when it was cut off.

/** Hears events of this name from this address, until `close` is called. */
export function listen(address, name, hear, lost) {
  const source = new EventSource(address);
  source.addEventListener(name, (event) => {
    lost(false);
    hear(JSON.parse(event.data));
  });
  source.addEventListener("error", () => {
    // Refused for good, for example because there is no such job.
    lost(true, source.readyState === EventSource.CLOSED);
  });
  return source;
}
