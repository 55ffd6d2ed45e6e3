"""Functions of everyday life with requests as people word them; training split only.

A line is: names | description | parameters | requests. A parameter is ``name:role`` or ``name:role(choice,…)``, with
``?`` after the name if it is optional; ``from`` has choices that the schema does not list. ``[…{x}…]`` in a request
stands only if `x` is given.

What must stay true: a request names every required parameter of its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LINES: Final = """
get weather/get current weather/fetch weather | Get the weather of a city | city:city unit?:enum(celsius,fahrenheit) date?:date | What is the weather in {city}[ on {date}][ in {unit}]?; How is the weather in {city}[ on {date}]?; Weather in {city}[, {unit}]; Is it raining in {city}[ on {date}]?; Tell me how warm it is in {city}[, in {unit}].
get forecast/weather forecast | Forecast of the weather for some days | location:city days:count | What will the weather be in {location} for the next {days} days?; {days} day forecast for {location}; Give me a forecast of {days} days for {location}.
calculate triangle area/triangle area | Area of a triangle | base:num height:num unit?:enum(cm,meters,inches) | What is the area of a triangle with base {base} and height {height}[ in {unit}]?; Area of a triangle, base {base}, height {height}[ {unit}]; Find the area of a triangle whose base is {base} and whose height is {height}.
calculate circle area/circle area | Area of a circle | radius:num | What is the area of a circle with a radius of {radius}?; Compute the area of a circle of radius {radius}.; How big is a circle with radius {radius}?
rectangle area/calculate rectangle area | Area of a rectangle | width:num length:num | Find the area of a rectangle {width} wide and {length} long.; What is the area of a rectangle with width {width} and length {length}?
calculate bmi/bmi | Body mass index | weight:num height:num | What is my BMI if my weight is {weight} kg and my height is {height} m?; I weigh {weight} kg and I am {height} m tall. What is my BMI?
convert currency/exchange | Convert an amount of money | amount:num source:from(USD,EUR,GBP,JPY,CHF,INR) target:from(CAD,AUD,CNY,BRL,SEK,MXN) | Convert {amount} {source} to {target}.; How much is {amount} {source} in {target}?; Change {amount} {source} into {target}, please.; What do I get in {target} for {amount} {source}?
convert temperature | Convert a temperature | value:num source:enum(celsius,fahrenheit,kelvin) target:enum(rankine,reaumur,newton) | Convert {value} {source} to {target}.; What is {value} degrees {source} in {target}?
convert units/unit convert | Convert between units | value:num source:from(km,kg,liters,inches,feet) target:from(miles,pounds,gallons,cm,meters) | How many {target} are {value} {source}?; Convert {value} {source} to {target}; {value} {source} in {target}
compound interest/calculate interest | Interest on a sum of money | principal:num rate:num years:count | How much do I have after {years} years if I invest {principal} dollars at {rate} percent?; Interest on {principal} at a rate of {rate} for {years} years
loan payment/calculate loan | Monthly payment of a loan | amount:num rate:num months:count | What do I pay monthly for a loan of {amount} at {rate} percent over {months} months?; Monthly payment: {amount} dollars, rate {rate}, {months} months
factorial/calculate factorial | Factorial of a number | n:count | What is the factorial of {n}?; Compute {n} factorial.; Factorial of {n}
greatest common divisor/gcd | Greatest common divisor of two numbers | a:count b:count | What is the greatest common divisor of {a} and {b}?; GCD of {a} and {b}; Find the gcd of {a} and {b}.
add numbers/sum | Sum of two numbers | a:num b:num | What is {a} plus {b}?; Add {a} and {b}.; {a} + {b}; Sum of {a} and {b}
multiply/multiply numbers | Product of two numbers | a:num b:num | What is {a} times {b}?; Multiply {a} by {b}.; {a} * {b}
divide/divide numbers | Quotient of two numbers | numerator:num denominator:num | Divide {numerator} by {denominator}.; What is {numerator} divided by {denominator}?
power/calculate power | Raise a number to a power | base:num exponent:count | What is {base} to the power of {exponent}?; Raise {base} to the {exponent}.
mean/calculate average/average | Mean of numbers | numbers:integers | What is the mean of {numbers}?; Average of {numbers}; Compute the average of the numbers {numbers}.
sort numbers/sort list | Sort numbers | numbers:integers order?:enum(ascending,descending) | Sort {numbers}[ in {order} order].; Put these numbers in [{order} ]order: {numbers}
random number | Random number in a range | low:count high:level | Give me a random number between {low} and {high}.; Pick a number from {low} to {high}
roll dice | Roll dice | count:count sides?:count | Roll {count} dice[ with {sides} sides].; Please roll {count} dice[, {sides} sides each].
speed/calculate speed | Speed from distance and time | distance:num time:num | How fast is a car that goes {distance} km in {time} hours?; Speed for a distance of {distance} in a time of {time}
distance/get distance/calculate distance | Distance between two cities | start:city end:city unit?:enum(km,miles) | How far is it from {start} to {end}[ in {unit}]?; Distance between {start} and {end}[ in {unit}]; What is the distance from {start} to {end}[, in {unit}]?
get directions/find route/navigate | Route between two places | origin:city destination:city mode?:enum(car,train,walking,bicycle) | How do I get from {origin} to {destination}[ by {mode}]?; Directions from {origin} to {destination}[, {mode}]; Find a route from {origin} to {destination}[ by {mode}].
book flight/search flights/flight booking | Flights between two cities | origin:city destination:city date:date class?:enum(economy,business,first) | Book a flight from {origin} to {destination} on {date}[ in {class} class].; I want to fly from {origin} to {destination} on {date}[, {class} class].; Find a [{class} ]flight to {destination} from {origin} for {date}.
book hotel/reserve room/find hotel | Book a hotel | city:city date:date nights:count guests?:count | Book a hotel in {city} from {date} for {nights} nights[ and {guests} guests].; I need a room in {city} on {date} for {nights} nights[ for {guests} people].; Find me a hotel in {city}: {nights} nights, from {date}[, {guests} guests]
rent car/car rental | Rent a car | location:city start date:date end date:date size?:enum(small,medium,large) | Rent a [{size} ]car in {location} from {start date} until {end date}.; I need a [{size} ]car in {location}, {start date} to {end date}
book table/reserve table | Book a table in a restaurant | restaurant:word time:time people:count | Book a table at {restaurant} for {people} people at {time}.; A table for {people} at {time} in {restaurant}, please.
find restaurants/search restaurants | Restaurants of a city | city:city cuisine?:from(italian,thai,indian,mexican,french,greek) limit?:count | Find [{limit} ][{cuisine} ]restaurants in {city}.; Where can I eat [{cuisine} food ]in {city}?; Show me [{cuisine} ]restaurants in {city}
order food/order pizza | Order food | dish:from(pizza,pasta,salad,soup,burger,curry) quantity:count size?:enum(small,medium,large) | Order {quantity} [{size} ]{dish}.; I'd like {quantity} [{size} ]{dish}, please.; Can I have {quantity} [{size} ]{dish}?
find recipe/search recipes/get recipe | Recipes with an ingredient | ingredient:word minutes?:count vegetarian?:flag | Find a recipe with {ingredient}[ in under {minutes} minutes].; What can I cook with {ingredient}[ in {minutes} minutes]?; Recipe with {ingredient}[, at most {minutes} minutes]
send email/email send | Send an email | to:email subject:phrase body?:phrase | Send an email to {to} with subject "{subject}"[ and text "{body}"].; Email {to} about "{subject}"[ saying "{body}"].; Write to {to}, subject "{subject}"[, body "{body}"].
send message/text message/send sms | Send a message to a person | recipient:person message:phrase | Tell {recipient} "{message}".; Send {recipient} the message "{message}".; Text {recipient}: {message}; Send "{message}" to {recipient}.
call/make call/phone call | Call a person | name:person speaker?:flag | Call {name}.; Please phone {name}.; I want to talk to {name}.; Ring {name}
add contact/create contact | Add a contact | name:person email:email city?:city | Add {name} to my contacts, email {email}[, from {city}].; New contact: {name}, {email}[, {city}]
create event/add event/schedule event | Add an event to the calendar | title:phrase date:date time?:time location?:city | Add "{title}" to my calendar on {date}[ at {time}][ in {location}].; Schedule "{title}" for {date}[ at {time}][ in {location}].; On {date}[ at {time}] I have "{title}"[ in {location}], note it.
schedule meeting/create meeting | Plan a meeting | participants:strings date:date time:time minutes?:count | Schedule a meeting with {participants} on {date} at {time}[ for {minutes} minutes].; Meeting with {participants}, {date}, {time}[, {minutes} minutes]
set alarm/create alarm | Set an alarm | time:time label?:phrase | Wake me at {time}[ with the label "{label}"].; Set an alarm for {time}[ called "{label}"].; Alarm at {time}[, "{label}"]
set timer/start timer | Start a timer | minutes:count label?:word | Set a timer for {minutes} minutes[ called {label}].; Timer, {minutes} minutes[, {label}]; Count down {minutes} minutes[ for {label}].
set reminder/create reminder/remind me | Remind the user | text:phrase date:date time?:time | Remind me to "{text}" on {date}[ at {time}].; Reminder for {date}[, {time}]: {text}
add task/create task/create todo | Add a task | title:phrase priority?:enum(low,medium,high) due date?:date | Add the task "{title}"[ with {priority} priority][, due on {due date}].; New todo: "{title}"[, {priority} priority][, due {due date}]; I have to "{title}"[ until {due date}].
complete task/close task | Mark a task as done | task id:id | Task {task id} is done.; Mark {task id} as done.; I finished {task id}.
play music/play song | Play a song | song:phrase artist?:person volume?:count | Play "{song}"[ by {artist}][ at volume {volume}].; I want to hear "{song}"[ by {artist}].; Put on "{song}"[ from {artist}]
set volume | Set the volume | level:count room?:from(kitchen,bedroom,bathroom,office) | Set the volume to {level}[ in the {room}].; Volume {level}[ in the {room}]; Make it louder[ in the {room}], level {level}.
turn light/switch light/set light | Switch the light of a room | room:from(kitchen,bedroom,bathroom,office,garage,hall) state:enum(on,off) color?:enum(red,green,blue,white) | Turn {state} the light in the {room}.; Switch the {room} light {state}[ in {color}].; Light {state} in the {room}[, {color}]
set temperature/set thermostat | Set the temperature of a room | room:from(kitchen,bedroom,bathroom,office,garage,hall) degrees:num | Heat the {room} to {degrees} degrees.; Make it {degrees} degrees in the {room}.; Set the {room} to {degrees}
get stock price/stock price | Price of a stock | symbol:from(AAPL,MSFT,NVDA,TSLA,AMZN,GOOG) date?:date | What is the price of {symbol}[ on {date}]?; How much is {symbol} stock[ on {date}]?; {symbol} price[ {date}]
buy stock/place order | Buy shares | symbol:from(AAPL,MSFT,NVDA,TSLA,AMZN,GOOG) quantity:count price?:num | Buy {quantity} shares of {symbol}[ at {price}].; I want {quantity} {symbol} shares[ for {price} each].
transfer money/send money | Send money to a person | recipient:person amount:num currency?:enum(USD,EUR,GBP) | Send {amount} [{currency} ]to {recipient}.; Pay {recipient} {amount}[ {currency}].; Transfer {amount}[ {currency}] to {recipient}
get balance/check balance | Balance of an account | account id:id | What is the balance of account {account id}?; How much money is on {account id}?
track package/track order/get order status | Where an order is | order id:id | Where is my order {order id}?; Track {order id}.; What is the status of order {order id}?
cancel order/cancel booking | Cancel an order | order id:id reason?:phrase | Cancel my order {order id}[ because "{reason}"].; I don't want {order id} any more[: "{reason}"].
search products/find product | Products of a shop | query:word max price?:num category?:enum(books,toys,clothes,garden) | Search for {query}[ below {max price} dollars][ in {category}].; I'm looking for {query}[ in {category}][ under {max price}].; Show me {query}[ that costs at most {max price}]
translate/translate text | Translate a text | text:phrase language:from(french,german,spanish,italian,japanese,english) | Translate "{text}" into {language}.; How do I say "{text}" in {language}?; What is "{text}" in {language}?
define word/get definition | Meaning of a word | word:word language?:from(french,german,spanish,english) | What does {word} mean[ in {language}]?; Define {word}[ in {language}].; Meaning of "{word}"
search web/web search/search | Search the web | query:phrase limit?:count | Search the web for "{query}"[, {limit} results].; Look up "{query}"[ and give me {limit} results].; Google "{query}"
get news/fetch news | News about a topic | topic:word limit?:count country?:from(France,Japan,Brazil,India,Canada) | Give me [{limit} ]news about {topic}[ from {country}].; What is new about {topic}[ in {country}]?
get time/current time | Time in a city | city:city | What time is it in {city}?; Time in {city}; Tell me the time in {city}.
get population/population | Population of a city | city:city year?:level | How many people live in {city}?; Population of {city}
get user/find user/lookup user | Data of a user | user id:id details?:flag | Who is user {user id}?; Show me user {user id}.; Find the user with the id {user id}.
create user/register user | Create a user | name:person email:email role?:enum(admin,editor,viewer) | Create a user for {name} with email {email}[ as {role}].; Register {name}, {email}[, role {role}]
create file/write file | Create a file | path:path content:phrase overwrite?:flag | Create {path} with the text "{content}".; Write "{content}" into {path}.; Save "{content}" as {path}
delete file/remove file | Delete a file | path:path force?:flag | Delete {path}.; Remove the file {path}.; I don't need {path} any more.
copy file/move file | Move a file | source:path target:path | Move {source} to {target}.; Put {source} into {target}
resize image/scale image | Resize an image | path:file width:count height:count | Resize {path} to {width} x {height}.; Make {path} {width} wide and {height} high.
query database/run query | Rows of a table | table:word columns?:strings limit?:count | Get [{limit} ]rows of the table {table}.; Show [{columns} of ]{table}[, only {limit} rows]
log workout/add workout | Note some sport | sport:enum(running,swimming,cycling,yoga) minutes:count date?:date | I did {minutes} minutes of {sport}[ on {date}].; Log {minutes} minutes {sport}[ for {date}]
book appointment/doctor appointment | Appointment with a doctor | doctor:person date:date time:time | I need an appointment with {doctor} on {date} at {time}.; Book {doctor} for {date}, {time}
movie tickets/book tickets | Tickets for a movie | movie:phrase seats:count date:date city?:city | Get {seats} tickets for "{movie}" on {date}[ in {city}].; {seats} seats for "{movie}", {date}[, {city}]
"""  # noqa: E501


@dataclass(frozen=True)
class Topic:
    """One line, read: parameters are (name, role, choices, optional)."""

    names: tuple[str, ...]
    description: str
    parameters: tuple[tuple[str, str, tuple[str, ...], bool], ...]
    requests: tuple[str, ...]


def needs(request: str) -> set[str]:
    """The values that `request` cannot do without."""
    return set(_slots(re.sub(r"\[[^\[\]]*\]", "", request)))


def fill(request: str, said: dict[str, str]) -> tuple[str, list[str]]:
    """`request` with the values of `said`, and the names that it used, in its order."""

    def kept(match: re.Match[str]) -> str:
        return match[1] if set(_slots(match[1])) <= said.keys() else ""

    text = re.sub(r"\[([^\[\]]*)\]", kept, request)
    return re.sub(r"{([^}]+)}", lambda match: said[match[1]], text), _slots(text)


def _slots(text: str) -> list[str]:
    return re.findall(r"{([^}]+)}", text)


def _read(line: str) -> Topic:
    names, description, parameters, requests = (part.strip() for part in line.split(" | "))
    found = re.findall(r"([a-z ]+)(\??):([a-z]+)(?:\(([^)]*)\))?", parameters)
    return Topic(
        tuple(names.split("/")),
        description,
        tuple((n.strip(), role, tuple(c.split(",")) if c else (), bool(o)) for n, o, role, c in found),
        tuple(requests.split("; ")),
    )


TOPICS: Final = tuple(map(_read, _LINES.strip().splitlines()))
