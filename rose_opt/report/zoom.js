// Shows the level of detail that fits the zoom, and names what is wide enough for a name.
const pixel_s = (x_range.end - x_range.start) / Math.max(figure.inner_width, 1)
let level = 0
while (level < levels.length - 1 && resolutions[level] > 1.5 * tiny_pixels * pixel_s) level++
levels.forEach((renderer, number) => {
  if (renderer.visible !== (number === level)) renderer.visible = number === level
})

const data = levels[level].data_source.data
const exact = data.row !== undefined
const row_pixels = figure.inner_height / rows
const most = 600, character = 6.3, padding = 4, close = 3 * pixel_s, narrow = 20 * pixel_s
const x = [], y = [], text = [], ink = []

function name_it({left, right, top, bottom, node, count}) {
  left = Math.max(left, x_range.start)
  right = Math.min(right, x_range.end)
  const room = Math.floor(((right - left) / pixel_s - 2 * padding) / character)
  if (room < 3 || (bottom - top) * row_pixels < 10 || x.length >= most) return
  const label = labels[node], short = label.slice(label.lastIndexOf(".") + 1)
  const times = count > 1 ? ` \u00d7${count.toLocaleString("en")}` : ""
  const fits = [label + times, short + times, label, short].find((name) => name.length <= room)
  if (fits === undefined && room < 5) return
  x.push(left + padding * pixel_s)
  y.push((top + bottom) / 2)
  text.push(fits ?? short.slice(0, room - 1) + "\u2026")
  ink.push(inks[node])
}

// Bands of one node that follow each other in a row get one name together.
const open = new Map()
for (let i = 0; i < data.left.length; i++) {
  const node = data.node[i], left = data.left[i], right = data.right[i]
  if (right < x_range.start || left > x_range.end) continue
  if (exact) {
    name_it({left, right, top: data.row[i] - 0.44, bottom: data.row[i] + 0.44, node, count: 1})
    continue
  }
  if (right - left > narrow && data.count[i] === 1) {
    name_it({left, right, top: data.top[i], bottom: data.bottom[i], node, count: 1})
    continue
  }
  const band = {left, right, top: data.top[i], bottom: data.bottom[i], node, count: data.count[i]}
  const place = `${node} ${Math.round(band.bottom)}`
  const before = open.get(place)
  if (before !== undefined && left >= before.left && left - before.right < close) {
    before.right = right
    before.count += band.count
    before.top = Math.max(before.top, band.top)
    before.bottom = Math.min(before.bottom, band.bottom)
  } else {
    if (before !== undefined) name_it(before)
    open.set(place, band)
  }
}
open.forEach((band) => name_it(band))
names.data = {x, y, text, ink}
