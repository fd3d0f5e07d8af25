// What a page can try against a node at base. Each attempt writes a key of its own name, or returns what it has read.
// A page may do all of it at its own origin, but for sending JSON under types that are not JSON's.

const json = (key) => JSON.stringify({increments: [{key, bin: "x"}]});
const args = (key) => new URLSearchParams({distribution: key, field: "x"});
const incr = (base, key) => `${base}/incr?${args(key)}`;
const post = (base, body, rest) => fetch(`${base}/v1/increment`, {method: "POST", body, ...rest});
const opaque = {mode: "no-cors"};

// element loads url by an element of the page, and returns the text of its document if the page may see it.
const element = (tag, attribute, url, more) => new Promise((done) => {
  const e = Object.assign(document.createElement(tag), more);
  e.onload = e.onerror = e.onloadeddata = () => {
    let text;
    try { text = e.contentDocument?.body?.innerText; } catch { /* it is of another origin */ }
    done(text);
  };
  e[attribute] = url;
  document.body.append(e);
});

// form sends fields to url, as a user would, with the answer in a frame.
const form = (url, enctype, fields) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.name = "frame" + Math.random();
  document.body.append(frame);
  frame.onload = () => done();
  const f = Object.assign(document.createElement("form"), {action: url, method: "POST", enctype, target: frame.name});
  for (const [name, value] of Object.entries(fields)) {
    f.append(Object.assign(document.createElement("input"), {name, value}));
  }
  document.body.append(f);
  f.submit();
});

// A form of text/plain whose only field makes a document of JSON with its "=".
const jsonField = (key) => ({[`{"increments":[{"key":"${key}","bin":"`]: `"}]}`});

const attempts = {
  "get": async (base, key) => (await fetch(incr(base, key))).text(),
  "get-no-cors": (base, key) => fetch(incr(base, key), opaque).then(() => {}),
  "get-no-referrer": (base, key) => fetch(incr(base, key), {...opaque, referrerPolicy: "no-referrer"}).then(() => {}),
  "head-no-cors": (base, key) => fetch(incr(base, key), {...opaque, method: "HEAD"}).then(() => {}),
  "get-header": async (base, key) => (await fetch(incr(base, key), {headers: {"X-Page": "1"}})).text(), // with a preflight
  "xhr": (base, key) => new Promise((done) => {
    const x = new XMLHttpRequest();
    x.onloadend = () => done(x.responseText);
    x.open("GET", incr(base, key));
    x.send();
  }),
  "img": (base, key) => element("img", "src", incr(base, key)),
  "img-no-referrer": (base, key) => element("img", "src", incr(base, key), {referrerPolicy: "no-referrer"}),
  "script": (base, key) => element("script", "src", incr(base, key)),
  "style": (base, key) => element("link", "href", incr(base, key), {rel: "stylesheet"}),
  "iframe": (base, key) => element("iframe", "src", incr(base, key)),
  "prefetch": (base, key) => element("link", "href", incr(base, key), {rel: "prefetch"}),
  "video": (base, key) => element("video", "src", incr(base, key)),
  "websocket": (base, key) => new Promise((done) => {
    const s = new WebSocket(incr(base, key).replace("http:", "ws:"));
    s.onmessage = (m) => done(m.data);
    s.onclose = () => done();
  }),

  "post-json": async (base, key) => (await post(base, json(key), {headers: {"Content-Type": "application/json"}})).text(),
  "post-text": async (base, key) => (await post(base, json(key))).text(),
  "post-text-no-cors": (base, key) => post(base, json(key), opaque).then(() => {}),
  "post-blob": (base, key) => post(base, new Blob([json(key)]), opaque).then(() => {}),
  "post-buffer": (base, key) => post(base, new TextEncoder().encode(json(key)), opaque).then(() => {}),
  "post-null-origin": (base, key) => post(base, json(key), {...opaque, referrerPolicy: "no-referrer"}).then(() => {}),
  "post-keepalive": (base, key) => post(base, json(key), {...opaque, keepalive: true}).then(() => {}),
  "post-args": (base, key) => fetch(`${base}/incr`, {...opaque, method: "POST", body: args(key)}).then(() => {}),
  "post-query": (base, key) => fetch(incr(base, key), {...opaque, method: "POST"}).then(() => {}),
  "beacon-text": (base, key) => { navigator.sendBeacon(`${base}/v1/increment`, json(key)); },
  "beacon-blob": (base, key) => { navigator.sendBeacon(`${base}/v1/increment`, new Blob([json(key)])); },
  "beacon-json": (base, key) => { navigator.sendBeacon(`${base}/v1/increment`, new Blob([json(key)], {type: "application/json"})); },
  "beacon-args": (base, key) => { navigator.sendBeacon(`${base}/incr`, args(key)); },
  "form-args": (base, key) => form(`${base}/incr`, "application/x-www-form-urlencoded", Object.fromEntries(args(key))),
  "form-text": (base, key) => form(`${base}/v1/increment`, "text/plain", jsonField(key)),
  "form-multipart": (base, key) => form(incr(base, key), "multipart/form-data", {a: "b"}),
  "form-namespace": (base, key) => form(`${base}/v1/namespaces`, "text/plain", {[`{"namespace":{"name":"${key}","kind":"distribution"},"x`]: `":1}`}),
  "namespace": async (base, key) => (await fetch(`${base}/v1/namespaces`, {
    method: "POST", body: JSON.stringify({namespace: {name: key}}), headers: {"Content-Type": "application/json"},
  })).text(),
  "delete": async (base) => (await fetch(`${base}/v1/ns/default/key/doomed`, {method: "DELETE"})).text(),

  "read-front": async (base) => (await fetch(`${base}/`)).text(),
  "read-key": async (base) => (await fetch(`${base}/v1/ns/default/distribution/kept`)).text(),
  "read-keys": async (base) => (await fetch(`${base}/v1/ns/default/keys/**`)).text(),
  "read-dist": async (base) => (await fetch(`${base}/dist?distribution=kept`)).text(),
  "read-status": async (base) => (await fetch(`${base}/v1/status`)).text(),
  "read-openapi": async (base) => (await fetch(`${base}/openapi.json`)).text(),
  "read-query": async (base) => (await fetch(`${base}/v1/query`, {
    method: "POST", body: JSON.stringify({text: "top 3 kept"}), headers: {"Content-Type": "application/json"},
  })).text(),
  "read-iframe": (base) => element("iframe", "src", `${base}/v1/ns/default/distribution/kept`),
  "read-watch": (base) => new Promise((done) => {
    const s = new EventSource(`${base}/v1/ns/default/watch/kept`);
    s.onerror = () => { s.close(); done(); };
    s.addEventListener("answer", (e) => { s.close(); done(e.data); });
  }),
};

// What a page can try against the listeners that are not for clients over HTTP.
const others = {
  "read-metrics": async (base) => (await fetch(`${base}/metrics`)).text(),
  "read-version": async (base) => (await fetch(`${base}/version`)).text(),
  "read-heap": async (base) => (await fetch(`${base}/debug/pprof/heap?debug=1`)).text(),
  "profile": (base) => element("img", "src", `${base}/debug/pprof/profile?seconds=1`),
  "post": async (base, key) => (await fetch(`${base}/ebb.v1.Ebb/Increment`, {method: "POST", body: json(key)})).text(),
  "post-grpc": async (base, key) => (await fetch(`${base}/ebb.v1.Ebb/Increment`, {
    method: "POST", body: json(key), headers: {"Content-Type": "application/grpc"},
  })).text(),
};

// tryAll makes all attempts at once, and returns what was read, by the name of the attempt.
async function tryAll(attempts, base, prefix) {
  const read = {};
  await Promise.all(Object.entries(attempts).map(async ([name, attempt]) => {
    const late = new Promise((done) => setTimeout(done, 4000));
    try {
      const text = await Promise.race([attempt(base, prefix + name), late]);
      if (text) {
        read[name] = text;
      }
    } catch { /* the browser keeps the answer from the page */ }
  }));
  return read;
}
