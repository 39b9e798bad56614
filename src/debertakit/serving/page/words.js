// The words of the page and the examples of each task, in English and Chinese.

export const WORDS = {
  en: {
    try: "Playground", explore: "Attention", api: "API", model: "Model", run: "Predict", result: "Result", examples: "Examples",
    text: "Text", pair: "Second text", labels: "Labels, one per line", question: "Question", context: "Context",
    options: "Options, one per line", show: "Show attention", against: "Compare with", alone: "(none)",
    nothing: "No entities were found.", none: "no answer in the text", value: "score", numbers: "numbers, starting with",
    json: "Request and answer as JSON", key: "API key", wait: "Working …", took: (seconds) => `${seconds} s`,
    empty: (field) => `“${field}” is empty. Write something, or choose an example.`,
    noMask: (mask) => `The text has no ${mask}. Put ${mask} where a word should be filled in.`,
    few: (field) => `“${field}” needs at least two lines.`,
    unreachable: "The server does not answer. Is it still running?",
    busy: "The server is busy. Try again in a moment.",
    slow: "The answer took too long. Try a shorter text.",
    wrongKey: "This API key is not accepted.",
    mask: (number) => `Mask ${number}`,
    choose: "Choose a word to put it into the sentence.",
    // task -> its name, and what the model does
    tasks: {
      classify: ["text classification", "Chooses the label that fits the text."],
      pairs: ["classification of text pairs", "Chooses the label that fits the two texts together."],
      "zero-shot": ["zero-shot classification", "Chooses among labels that you write; it was not trained on them."],
      ner: ["named entities", "Finds names in the text, and their types."],
      answer: ["question answering", "Finds the answer to a question in a text."],
      choose: ["multiple choice", "Chooses the option that continues the text best."],
      fill: ["masked words", "Suggests words for each [MASK] in the text."],
      score: ["text matching", "Measures how well two texts match."],
      embed: ["embeddings", "Turns a text into a vector. Similar texts have similar vectors."],
    },
  },
  zh: {
    try: "试用", explore: "注意力", api: "接口", model: "模型", run: "预测", result: "结果", examples: "示例",
    text: "文本", pair: "第二段文本", labels: "标签（每行一个）", question: "问题", context: "上下文",
    options: "选项（每行一个）", show: "显示注意力", against: "对比模型", alone: "（无）",
    nothing: "没有找到实体。", none: "文中没有答案", value: "分数", numbers: "个数，前几个为",
    json: "JSON 格式的请求和答案", key: "API 密钥", wait: "计算中…", took: (seconds) => `用时 ${seconds} 秒`,
    empty: (field) => `“${field}”不能为空。请输入内容，或选择一个示例。`,
    noMask: (mask) => `文本中没有 ${mask}。请在要填词的位置写上 ${mask}。`,
    few: (field) => `“${field}”至少需要两行。`,
    unreachable: "服务器没有响应。它还在运行吗？",
    busy: "服务器正忙，请稍后再试。",
    slow: "计算超时，请缩短文本后再试。",
    wrongKey: "此 API 密钥无效。",
    mask: (number) => `空缺 ${number}`,
    choose: "点击一个词，将它填入句子。",
    tasks: {
      classify: ["文本分类", "为文本选出最合适的标签。"],
      pairs: ["句对分类", "为两段文本选出最合适的标签。"],
      "zero-shot": ["零样本分类", "从你写下的标签中选择，无需针对这些标签训练。"],
      ner: ["命名实体识别", "找出文本中的名称及其类型。"],
      answer: ["阅读理解问答", "在文本中找出问题的答案。"],
      choose: ["多项选择", "选出最适合接在文本后面的选项。"],
      fill: ["掩码填空", "为文本中的每个 [MASK] 给出候选词。"],
      score: ["文本匹配", "计算两段文本的匹配程度。"],
      embed: ["文本向量", "把文本转换为向量，相似的文本具有相似的向量。"],
    },
  },
};

const CONTEXT = "Ada Lovelace was born in London in 1815. She wrote the first published program for Babbage's machine.";
const CONTEXT_ZH = "鲁迅1881年出生于浙江绍兴，1918年发表了《狂人日记》。";

// Task -> language -> inputs. "pairs" is for classifiers of two texts.
export const EXAMPLES = {
  classify: {
    en: [{ text: "A warm and funny film." }, { text: "The plot is slow, and the ending makes no sense." },
         { text: "Not bad, but I would not watch it again." }],
    zh: [{ text: "房间干净，服务热情，下次还来。" }, { text: "等了一个小时才上菜，味道也一般。" }],
  },
  pairs: {
    en: [{ text: "A man plays the guitar on a stage.", pair: "A musician performs." },
         { text: "The shop closes at six.", pair: "The shop is open all night." }],
    zh: [{ text: "一个男人在台上弹吉他。", pair: "有人在演奏音乐。" }, { text: "商店六点关门。", pair: "商店通宵营业。" }],
  },
  "zero-shot": {
    en: [{ text: "The match ended in a draw.", labels: ["sport", "politics", "music"] },
         { text: "Parliament voted on the new budget.", labels: ["sport", "politics", "music"] }],
    zh: [{ text: "比赛以平局结束。", labels: ["体育", "政治", "音乐"] },
         { text: "议会通过了新的预算案。", labels: ["体育", "政治", "音乐"] }],
  },
  ner: {
    en: [{ text: "Ada Lovelace was born in London." }, { text: "On Tuesday, Tim Cook opened an Apple office in Munich." }],
    zh: [{ text: "北京大学位于中国首都北京。" }, { text: "鲁迅出生在浙江绍兴，曾在日本仙台学医。" }],
  },
  answer: {
    en: [{ question: "Where was Ada Lovelace born?", context: CONTEXT }, { question: "What did she write?", context: CONTEXT },
         { question: "Who was her teacher?", context: CONTEXT }],
    zh: [{ question: "鲁迅出生在哪里？", context: CONTEXT_ZH }, { question: "《狂人日记》是哪一年发表的？", context: CONTEXT_ZH }],
  },
  choose: {
    en: [{ text: "It began to rain, so she", options: ["opened her umbrella.", "watered the flowers."] },
         { text: "The glass fell off the table and", options: ["broke on the floor.", "began to sing."] }],
    zh: [{ text: "开始下雨了，所以她", options: ["打开了雨伞。", "给花浇了水。"] },
         { text: "杯子从桌上掉下来，", options: ["摔碎了。", "唱起歌来。"] }],
  },
  fill: {
    en: [{ text: "Paris is the [MASK] of France." }, { text: "She opened the [MASK] and read the first page." },
         { text: "The [MASK] sat on the mat and watched the [MASK]." }],
    zh: [{ text: "北京是中国的[MASK]都。" }, { text: "今天天气很[MASK]。" }],
  },
  score: {
    en: [{ text: "A man plays the guitar.", pair: "Someone makes music." }, { text: "The train is late.", pair: "A man plays the guitar." }],
    zh: [{ text: "一个男人在弹吉他。", pair: "有人在演奏音乐。" }, { text: "火车晚点了。", pair: "一个男人在弹吉他。" }],
  },
  embed: {
    en: [{ text: "A man plays the guitar." }, { text: "The train is late." }],
    zh: [{ text: "一个男人在弹吉他。" }, { text: "火车晚点了。" }],
  },
};

export const EXPLORED = {
  en: "The old church near the river was built after the new road had opened.",
  zh: "河边的老教堂是在新公路通车以后建成的。",
};
