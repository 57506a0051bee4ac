"""Prints the 1,000 generic questions of hot_queries.txt (`python -m services.tokenizer.make_hot_queries`).

Every line is one of twenty ways to ask, about one of fifty subjects.
"""

ASKS = (
    "What is {}?",
    "How does {} work?",
    "Explain {} in simple terms.",
    "Give me a short summary of {}.",
    "What are the main advantages of {}?",
    "What are common problems with {}?",
    "How do I get started with {}?",
    "Write three sentences about {}.",
    "What should a beginner know about {}?",
    "Why does {} matter?",
    "List five facts about {}.",
    "What are the best practices for {}?",
    "Can you give an example of {}?",
    "What is the history of {}?",
    "How much does {} usually cost?",
    "Who needs to know about {}?",
    "What questions do people ask most about {}?",
    "How has {} changed in the last 10 years?",
    "What is the difference between good and bad {}?",
    "Write an email that explains {} to a customer.",
)
SUBJECTS = (
    "machine learning", "a neural network", "photosynthesis", "compound interest", "a mortgage", "inflation",
    "the stock market", "a balanced diet", "intermittent fasting", "strength training", "good sleep",
    "time management", "project planning", "remote work", "a job interview", "a cover letter",
    "public speaking", "customer service", "a return policy", "order tracking", "password security",
    "two-factor authentication", "a virtual private network", "cloud computing", "a container image",
    "a load balancer", "a relational database", "an SQL join", "version control", "unit testing",
    "code review", "a Python list comprehension", "asynchronous programming", "an HTTP status code",
    "a REST API", "climate change", "solar energy", "an electric car", "recycling", "the water cycle",
    "the solar system", "a black hole", "plate tectonics", "the Roman Empire", "the French Revolution",
    "renewable energy policy", "a travel itinerary", "learning a new language", "home gardening",
    "coffee brewing",
)  # fmt: skip


def main() -> None:
    """Prints the file."""
    for subject in SUBJECTS:
        for ask in ASKS:
            print(ask.format(subject))


if __name__ == "__main__":
    main()
