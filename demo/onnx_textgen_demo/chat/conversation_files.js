// Conversations as files: the branch that is shown as JSON or Markdown, and JSON that is read.

const LONGEST_FILE = 4_000_000; // bytes

const messages = () => {
  const { nodes, system } = props.value;
  const path = pathOf(props.value).map((place) => nodes[place].message).filter((message) => !isDeleted(message));
  return system?.trim() ? [{ role: "system", content: system }, ...path] : path;
};
const nameNow = () => title(read(opened()) ?? { conversation: props.value });
const download = (text, type, ending) => {
  const link = make("a", {
    href: URL.createObjectURL(new Blob([text], { type })),
    download: `${nameNow().replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation"}.${ending}`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};
const asMarkdown = () => {
  const names = { system: "System", user: "You", assistant: "Model", tool: "Tool" };
  const parts = messages().map((each) => {
    const calls = (each.tool_calls ?? []).map((call) => `\`\`\`json\n${JSON.stringify(call.function, null, 2)}\n\`\`\``);
    return [`## ${names[each.role]}`, each.content, ...calls].filter(Boolean).join("\n\n");
  });
  return `# ${nameNow()}\n\n${parts.join("\n\n")}\n`;
};
at("input[type=file]").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  if (file.size > LONGEST_FILE) return tell(`The file has ${file.size.toLocaleString("en")} bytes; at most ${LONGEST_FILE.toLocaleString("en")} are read.`);
  try {
    trigger("select", { conversation: JSON.parse(await file.text()), is_imported: true });
  } catch {
    tell("The file is no JSON; import one that this page exported.");
  }
});
