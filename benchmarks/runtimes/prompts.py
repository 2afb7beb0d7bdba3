"""The prompts: beginnings of stories, short and long, which every model here continues."""

PROMPTS = (
    "Once upon a time",
    "The little dog",
    "Lily and Tom went to the park. They",
    "One day, a cat",
    "Mom said",
    "In the forest there was a small house. In the house",
    "The sun was bright and the birds were singing. Ben",
    "Ben had a red ball. He liked to play with it every day. One day",
    "Sara liked to draw. She drew",
    "A big bear",
    '"Can I have a cookie?" asked Tim.',
    "It was raining, and",
    "The boy looked at the moon and",
    "There was an old man who lived by the sea. Every morning he",
    "Anna found a key under the tree. She wanted to know what it opened, so she",
    "The bird could not fly because",
    "Max was sad. His friend",
    "At night the toys",
    "Grandma gave Lucy a box. Inside the box there was",
    "The rabbit ran as fast as it could, but the fox",
)
