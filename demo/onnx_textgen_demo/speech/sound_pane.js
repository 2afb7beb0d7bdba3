// A sound, `props.value`: samples in base64, one channel, 16 bits, RATE a second. It is recorded, chosen, or dropped on the pane, and decoded
// in the browser; this server gets no file.

const player = element.querySelector("audio");
const chooser = element.querySelector("input[type=file]");
const record = element.querySelector(".record");
const note = element.querySelector("[role=status]");
const tell = (text) => (note.textContent = text);

const lengthOf = (url) => new Promise((resolve, reject) => {
  player.onloadedmetadata = () => resolve(player.duration);
  player.onerror = reject;
  player.src = url;
});
const inBase64 = (buffer) => {
  const channels = Array.from({ length: buffer.numberOfChannels }, (_, each) => buffer.getChannelData(each));
  const samples = new Int16Array(buffer.length);
  for (let place = 0; place < buffer.length; place++) {
    let sum = 0;
    for (const channel of channels) sum += channel[place];
    samples[place] = Math.max(-32768, Math.min(32767, Math.round((32768 * sum) / channels.length)));
  }
  const bytes = new Uint8Array(samples.buffer);
  let made = "";
  for (let place = 0; place < bytes.length; place += 24576) made += btoa(String.fromCharCode(...bytes.subarray(place, place + 24576))); // whole groups of 3
  return made;
};

let latest = 0;
const read = async (file) => {
  if (recorder) return tell("A sound is being recorded; end that first.");
  const turn = ++latest;
  const isCurrent = () => turn === latest;
  props.value = null;
  player.hidden = true;
  tell("reading ...");
  if (player.src) URL.revokeObjectURL(player.src);
  try {
    const seconds = await lengthOf(URL.createObjectURL(file));
    if (Number.isFinite(seconds) && seconds > MOST_SECONDS) throw new RangeError(); // that of a recording is infinite
    const buffer = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
    if (buffer.duration > MOST_SECONDS) throw new RangeError();
    if (!isCurrent()) return;
    props.value = inBase64(buffer);
    player.hidden = false;
    tell(`${file.name ?? "Recording"}, ${buffer.duration.toFixed(1)} seconds`);
    trigger("input");
  } catch (error) {
    if (!isCurrent()) return;
    const name = file.name || "This";
    tell(error instanceof RangeError
      ? `A sound has at most ${MOST_SECONDS / 60} minutes here; longer ones are for the command: onnx-textgen transcribe`
      : `${name} is no sound that this browser reads.`);
    trigger("input");
  }
};

let recorder;
let isAsked = false; // whether the browser asks for permission
const startRecording = async () => {
  if (isAsked) return;
  if (!navigator.mediaDevices) return tell("Browsers give a microphone only to pages of this machine, or over https; choose a file.");
  isAsked = true;
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const pieces = [];
    const made = new MediaRecorder(stream);
    const inTime = setTimeout(() => made.stop(), 1000 * (MOST_SECONDS - 5)); // a longer one would be refused, and lost
    made.ondataavailable = ({ data }) => pieces.push(data);
    made.onstop = () => { // by a press, or because the microphone is gone
      clearTimeout(inTime);
      release(stream);
      recorder = undefined;
      mark(false);
      read(new Blob(pieces, { type: pieces[0]?.type }));
    };
    made.start();
    recorder = made;
    latest++; // a file that is still being read is not wanted any more
    mark(true);
    player.pause();
    tell("recording ...");
  } catch (error) {
    release(stream);
    tell(`The browser gives no microphone (${error.message}); choose a file.`);
  } finally {
    isAsked = false;
  }
};
const release = (stream) => stream?.getTracks().forEach((track) => track.stop());
const mark = (isOn) => {
  record.setAttribute("aria-pressed", String(isOn));
  record.textContent = isOn ? "End recording" : "Record";
};

record.addEventListener("click", () => (recorder ? recorder.stop() : startRecording()));
element.querySelector(".choose").addEventListener("click", () => chooser.click());
chooser.addEventListener("change", async () => {
  if (chooser.files.length) await read(chooser.files[0]);
  chooser.value = "";
});
element.addEventListener("dragover", (event) => event.preventDefault());
element.addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  read(event.dataTransfer.files[0]);
});
