// The worker of the site's search. It finds, for each word of a query, all words that begin with it. So words of one or
// two characters, such as a name in a message, are left out if there are longer ones, and whole words count more. A query
// in the search's own syntax (+word, "some words", word^2, wor*) stays as it is.
{
  const improve = query => {
    const words = new Set(query.toLowerCase().split(/[-\s'`.,:;()[\]]+/).filter(word => word.length > 2))
    return /["+^~*]/.test(query) || !words.size ? query : [...words].flatMap(word => [`${word}^5`, word]).join(" ")
  }
  const translate = message => ({ ...message, data: typeof message.data === "string" ? improve(message.data) : message.data })

  // Browsers start no worker for a page that is opened as a file: there it runs in an iframe. A window has the same
  // functions, but its postMessage must reach the page instead of itself.
  class FrameWorker extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      script.src = address
      this.loaded = new Promise(resolve => script.addEventListener("load", resolve))
      frame.contentDocument.body.append(script)
    }

    async postMessage(data) {
      await this.loaded
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }
  }

  const Base = location.protocol === "file:" ? FrameWorker : Worker
  window.Worker = class extends Base {
    postMessage(message) {
      return super.postMessage(translate(message))
    }
  }
}
