/* Browsers start no worker for a page that is read from disk, so search would stay silent there.
   This stands in for Worker in that case: the script runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.frame = frame;
      this.waiting = [];
      this.answer = (event) => {
        if (event.source !== frame.contentWindow) return;
        if (event.data && event.data.workerIsReady) {
          this.ready = true;
          for (const message of this.waiting.splice(0)) this.postMessage(message);
          return;
        }
        const copy = new MessageEvent("message", { data: event.data });
        if (this.onmessage) this.onmessage(copy);
        this.dispatchEvent(copy);
      };
      window.addEventListener("message", this.answer);
      frame.srcdoc = `<body><script>
        var real = window.parent;
        var postMessage = function (data) { real.postMessage(data, "*"); };
        var importScripts = function () {
          return Array.from(arguments).reduce(function (before, url) {
            return before.then(function () {
              return new Promise(function (done, fail) {
                var script = document.createElement("script");
                script.src = url; script.onload = done; script.onerror = fail;
                document.body.appendChild(script);
              });
            });
          }, Promise.resolve());
        };
        importScripts(${JSON.stringify(String(url))}).then(function () {
          postMessage({ workerIsReady: true });
        });
      <\/script></body>`;
      document.body.appendChild(frame);
    }
    postMessage(message) {
      // Not postMessage of the frame: the script in it has one that goes the other way.
      const event = new MessageEvent("message", { data: message });
      if (this.ready) this.frame.contentWindow.dispatchEvent(event);
      else this.waiting.push(message);
    }
    terminate() {
      window.removeEventListener("message", this.answer);
      this.frame.remove();
    }
  };
}
