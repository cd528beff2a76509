/* Search in pages read from disk: browsers reject workers there, so the search's script runs in a hidden frame.
   The theme loads this script in the place of one from another host. Its search uses only what is defined here.
   Messages are copied, as between a page and a worker: the search would change the page's own objects otherwise. */
class IFrameWorker {
  constructor(url) {
    this.frame = document.createElement("iframe")
    this.frame.hidden = true
    this.frame.srcdoc = "<!doctype html>"
    this.ready = new Promise(resolve => this.frame.addEventListener("load", resolve, { once: true })).then(() => {
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.onmessage?.(new MessageEvent("message", { data: structuredClone(data) }))
      return this.load(url)
    })
    document.body.append(this.frame)
  }

  load(url) {
    return new Promise((resolve, reject) => {
      const script = this.frame.contentDocument.createElement("script")
      script.src = url
      script.onload = resolve
      script.onerror = reject
      this.frame.contentDocument.body.append(script)
    })
  }

  postMessage(message) {
    const data = structuredClone(message)
    this.ready.then(() => {
      const inside = this.frame.contentWindow
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    })
  }

  terminate() {
    this.frame.remove()
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = IFrameWorker
}
